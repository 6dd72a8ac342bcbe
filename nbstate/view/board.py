"""The live view: one widget for all ranks, drawings in `Output` widgets, a page at the end.

    job -> BoardView's thread -> custom messages (text), `status`, `tail` -> board.js
    board.js -> "hello", "stop", "where" -> asked -> the thread does it and answers "ack"

Text never goes through an `Output` widget or a stream message: both freeze the page. Every drawing
is an `Output` widget of its own whose one output is set as state, so that a later update of the
same display id changes it in place.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbstate.job.output import Text
from nbstate.view.changes import Allowance, Change, RankChanges
from nbstate.view.fallback import Fallback, close_whole
from nbstate.view.follow import View
from nbstate.view.page import summary
from nbstate.view.publish import Cell, fresh_id
from nbstate.wire import WIDGET_MIME, ClearOutput, Display

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbstate.job import Job
    from nbstate.job.ranks import Rank
    from nbstate.view.page import Page

QUICK = 0.3
"""A blocking run that ends sooner leaves its page at once, without a board before it."""
SNAPSHOT_EVERY = 2.0
STATUS_EVERY = 0.25
KEPT_DRAWINGS = 20


class BoardView(View):
    """Shows a job on a board; every cell that shows it again has an equal view."""

    pace = 0.05

    def __init__(self, job: Job, place: Cell) -> None:
        super().__init__(job, place)
        # Imported here and not in the thread: a rank forked during an import would hang in it.
        from nbstate.view.widget import BoardWidget

        self._make_widget = BoardWidget
        self._widget: Any = None
        self._places = [(place, fresh_id())]
        self._showing = threading.Lock()
        self._over = False
        self._hellos = 0
        self._asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        # By rank, not by its number: nodes that come and go change that.
        self._drawn = {rank: RankDrawings() for rank in job.ranks}
        self._changes = {rank: RankChanges(rank) for rank in job.ranks}
        self._allowance = Allowance()
        self._began = time.monotonic()
        self._sent = 0
        self._status_at = self._snapshot_at = 0.0
        self._snapshot_due = False
        if not job.options.wait:  # the cell ends at once: what belongs to it must stand before
            self._open()

    def show_again(self, place: Cell) -> bool:
        """Show the same board in another cell; False when the run is over and only its page is."""
        with self._showing:
            if self._over:
                return False
            self._places.append((place, fresh_id()))
            if self._widget is not None:
                self._display(*self._places[-1])
            return True

    def look(self) -> float | None:
        """Send the page what is new."""
        if self._widget is None:
            left = self._began + QUICK - time.monotonic()
            if left > 0 or self.job.done:
                return left
            self._open()
        self._answer()
        rests = [self._send_status(), self._send_changes(), self._fallback.look()]
        return min((rest for rest in rests if rest is not None), default=None)

    def finish(self, page: Page) -> None:
        """Put the static page in the place of the board, wherever it stands."""
        self.notes_told = len(self.job.notes)
        with self._showing:
            self._over = True
            for place, display_id in self._places:
                place.show(page.bundle(), display_id, update=self._widget is not None)
        if self._widget is not None:
            self._close(page)

    # -- the widget

    def _open(self) -> None:
        import ipywidgets

        self._widget = self._make_widget(
            ranks=[rank.index for rank in self.job.ranks],
            kernel=_kernel_id(),
            status=self._status(),
        )
        _hear_during_cells(self._widget.comm)
        self._widget.on_msg(self._hear)
        self._fallback = Fallback(self.job)
        self._box = ipywidgets.VBox([self._widget, self._fallback.widget])
        self._box.add_class("nbstate-box")
        with self._showing:
            for place, display_id in self._places:
                self._display(place, display_id)

    def _display(self, place: Cell, display_id: str) -> None:
        said = summary(self.job, timed=False)
        widget = {"model_id": self._box.model_id, "version_major": 2, "version_minor": 0}
        place.show(
            {WIDGET_MIME: widget, "text/html": f"<p>{said}</p>", "text/plain": said}, display_id
        )

    def _close(self, page: Page | None = None) -> None:
        if self._hellos > 1 and page is not None:
            # A page that was loaded again does not know the display ids of its outputs: what it
            # shows is the widget, which goes on to show what stays.
            self._widget.page = page.html
        else:
            close_whole(self._box)
            close_whole(self._widget)
        self._fallback.close()
        for drawings in self._drawn.values():
            drawings.close()

    # -- to the page

    def _send_status(self) -> float | None:
        status = self._status()
        shown = {**self._widget.status, "elapsed": status["elapsed"]}
        if status == shown:
            return None
        left = self._status_at + STATUS_EVERY - time.monotonic()
        if left > 0 and status["state"] == shown["state"]:
            return left
        self._status_at = time.monotonic()
        self._widget.status = status
        return None

    def _status(self) -> dict[str, Any]:
        job = self.job
        return {
            "name": job.name,
            "state": job.state,
            "where": job.where,
            "elapsed": round(job.elapsed, 1),
            "blocking": job.options.wait,
            "notes": list(job.notes),
            "logs": str(job.ranks[0].output.path.parent),
            "ranks": [
                {"index": r.index, "state": _state(r), "doing": r.doing, "memory": r.memory}
                for r in job.ranks
            ],
        }

    def _send_changes(self) -> float | None:
        share = self._allowance.share(len(self._changes))
        changes = [c for rank in self._changes.values() for c in self._changes_of(rank, share)]
        if changes:
            self._sent += 1
            self._allowance.spend(sum(len(c[2]) for c in changes if len(c) > 2))
            self._widget.send({"op": "add", "n": self._sent, "c": changes})
            self._snapshot_due = True
        if not self._snapshot_due:
            return None
        left = self._snapshot_at + SNAPSHOT_EVERY - time.monotonic()
        if left <= 0:
            self._send_tail()
            return None
        return left

    def _send_tail(self) -> None:
        self._snapshot_due = False
        self._snapshot_at = time.monotonic()
        recent = [c for rank in self._changes.values() for c in rank.recent]
        self._widget.tail = {"n": self._sent, "c": recent}

    def _changes_of(self, reader: RankChanges, share: int) -> list[Change]:
        drawings = self._drawn[reader.rank]
        changes = [reader.drop(model) for model in drawings.drop(self._is_closed)]
        for entry in reader.read(share):
            if drawings.clears(entry):
                changes.append(reader.clear())
            if isinstance(entry, Text):
                changes.append(reader.text(entry))
            elif isinstance(entry, Display):
                new, gone = drawings.draw(entry)
                changes += [reader.drop(model) for model in gone]
                changes += [reader.draw(model) for model in new]
        return changes

    def _is_closed(self, drawing: Display) -> bool:
        return self.widgets is not None and self.widgets.closed(drawing)

    # -- from the page

    def _hear(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        # In whatever thread the kernel hears this: only noted here, done in the view's thread.
        self._asked.put(message)
        self.changed.set()

    def _answer(self) -> None:
        while not self._asked.empty():
            message = self._asked.get()
            if "id" in message:
                self._widget.send({"op": "ack", "id": message["id"]})
            if message["op"] == "hello":
                self._hellos += 1
                if self._hellos > 1:  # a page that has been loaded again
                    self._send_tail()
                # Out of the box first: a closed widget in it would spoil the answer to a reload.
                self._box.children = (self._widget,)
                self._fallback.close()
            elif message["op"] == "stop":
                self.job.stop()
            elif message["op"] == "where":
                threading.Thread(target=self._find_out_where, daemon=True).start()
            elif message["op"] == "said":
                self._widget.send(message)

    def _find_out_where(self) -> None:
        # In a thread of its own: the ranks may take a while to answer.
        self._asked.put({"op": "said", "text": self.job.stacks()})
        self.changed.set()


class RankDrawings:
    """The drawings of one rank: an `Output` widget for each, the last ones kept."""

    def __init__(self) -> None:
        self._outputs: list[tuple[Display, Any]] = []
        self._clear_at_next = False

    def clears(self, entry: Text | Display | ClearOutput) -> bool:
        """Tell whether the rank's page is emptied before this entry, and forget the drawings."""
        if isinstance(entry, ClearOutput) and entry.wait:
            self._clear_at_next = True
            return False
        update = isinstance(entry, Display) and entry.update
        if not isinstance(entry, ClearOutput) and (update or not self._clear_at_next):
            return False
        self._clear_at_next = False
        self.close()
        return True

    def draw(self, drawing: Display) -> tuple[list[str], list[str]]:
        """Show a drawing, or update it; return the ids of the widgets that came and went."""
        import ipywidgets

        output = {
            "output_type": "display_data",
            "data": drawing.data,
            "metadata": drawing.metadata,
        }
        if drawing.update:
            display_id = drawing.transient.get("display_id")
            for known, widget in self._outputs:
                if display_id is not None and known.transient.get("display_id") == display_id:
                    widget.outputs = (output,)
            return [], []
        widget = ipywidgets.Output(outputs=(output,))
        self._outputs.append((drawing, widget))
        return [widget.model_id], self._close(self._outputs[:-KEPT_DRAWINGS])

    def drop(self, which: Callable[[Display], bool]) -> list[str]:
        """Take some drawings away; return the ids of their widgets."""
        return self._close([pair for pair in self._outputs if which(pair[0])])

    def close(self) -> None:
        """Close the widgets."""
        self._close(self._outputs)

    def _close(self, gone: list[tuple[Display, Any]]) -> list[str]:
        self._outputs = [pair for pair in self._outputs if pair not in gone]
        ids = [widget.model_id for _, widget in gone]
        for _, widget in gone:
            close_whole(widget)
        return ids


def _state(rank: Rank) -> str:
    if rank.state == "running" and rank.doing.startswith("in "):  # a collective, and then the line
        return "waiting"
    return rank.state


def _hear_during_cells(comm: Any) -> None:
    # ipykernel 7.4 sends what the page says to the shell that published last: during a cell that is
    # the one which is busy. The default is the page's own subshell, which is free.
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default


def _kernel_id() -> str:
    """Return the id that the notebook server has for this kernel, or ''."""
    from ipykernel.connect import get_connection_file

    found = re.fullmatch(r"kernel-([0-9a-f-]{36})\.json", Path(get_connection_file()).name)
    return found[1] if found else ""
