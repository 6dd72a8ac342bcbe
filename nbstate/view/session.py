"""What the ranks of a session say and draw, in the cell that asked them.

An errand that is over in a moment leaves text and drawings as a cell of its own would. A longer one
is followed live, on a board or as text, which then gives way to the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from nbstate.environment import choose_view
from nbstate.job.output import Cursor
from nbstate.relay import Relay
from nbstate.view.board import BoardView
from nbstate.view.fold import fold, ranges
from nbstate.view.follow import View
from nbstate.view.page import describe
from nbstate.view.plain import NOTEBOOK, PlainView, RankReader, SilentView, bounds_of
from nbstate.view.publish import Cell, this_place
from nbstate.view.sheet import Drawing, Sheet
from nbstate.view.terminal import Screen
from nbstate.wire import WIDGET_MIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbstate.job import Job
    from nbstate.relay.widgets import Widgets
    from nbstate.session.errand import Errand
    from nbstate.session.part import Part
    from nbstate.view.page import Page
    from nbstate.view.publish import Bundle, Place
    from nbstate.view.sheet import Block
    from nbstate.wire import Display

QUICK = 0.2
"""Seconds after which an errand is followed live."""

_PRE = "margin:0;white-space:pre-wrap;overflow-wrap:anywhere"


class CurrentPlace:
    """The cell that runs now: where widgets and questions of ranks go, which outlive any cell."""

    draws = True
    watched = True
    bounded = True

    def __init__(self) -> None:
        self.place = this_place()

    def move(self) -> None:
        """Go to the cell that runs now."""
        self.place = this_place()

    def write(self, stream: str, text: str) -> None:
        """Show text."""
        self.place.write(stream, text)

    def flush(self) -> None:
        """Return once everything is on its way to the user."""
        self.place.flush()

    def show(
        self,
        bundle: Bundle,
        display_id: str | None = None,
        *,
        update: bool = False,
        metadata: Bundle | None = None,
    ) -> None:
        """Show a mime bundle."""
        self.place.show(bundle, display_id, update=update, metadata=metadata)

    def send_comm(self, *message: Any) -> None:
        """Send a message of a comm, where somebody sees widgets."""
        if isinstance(self.place, Cell):
            self.place.send_comm(*message)

    def ask(
        self, prompt: str, *, password: bool, still: Callable[[], bool], glance: int
    ) -> str | None:
        """Ask in the cell that runs now."""
        return self.place.ask(prompt, password=password, still=still, glance=glance)


@dataclass(frozen=True)
class Seen:
    """The widgets of ranks, and whether they are `live`: somebody sees them, and they answer."""

    widgets: Widgets
    live: bool

    def shown(self, data: Bundle, place: Place) -> Bundle:
        """Return what a place shows of a drawing: of a widget that is not live, its last state."""
        if WIDGET_MIME not in data:
            return data
        text = {"text/plain": describe(data, self.widgets)}  # beside a live one for other pages
        return {**data, **text} if self.live and place.draws else text


class Stage:
    """Shows the errands of one session."""

    def __init__(self, job: Job) -> None:
        self._place = CurrentPlace()
        self._kind = choose_view(job.options.view)
        live = self._kind == "board"
        self._seen = Seen(Relay(job, self._place, live=live).widgets, live)

    def move(self) -> None:
        """Show what follows in the cell that runs now: before an errand begins, it may ask."""
        self._place.move()

    def follow(self, errand: Errand, *, quiet: bool) -> None:
        """Wait until an errand is over, and show it."""
        place = self._place.place
        quiet = quiet or self._kind == "silent"
        if not errand.wait(QUICK):
            view = self._view(errand, place, quiet=quiet)
            view.start()
            try:
                errand.wait()
            finally:
                view.join()
            return
        if not quiet:
            for shown in composed(errand, place, self._seen):
                shown.show(place)
        for note in errand.notes:
            self.tell(note)

    def tell(self, line: str) -> None:
        """Say something in the cell that runs now."""
        self._place.write("stdout", line + "\n")

    def close(self) -> None:
        """The ranks are gone: their widgets stay as they are, and answer no more."""
        self._seen.widgets.close()

    def _view(self, errand: Errand, place: Place, *, quiet: bool) -> View:
        # An errand has the face of a job, for what views read of one.
        job = cast("Job", errand)
        if quiet:
            return _CellNotes(job, place)
        if self._kind == "board" and isinstance(place, Cell):
            try:
                return _CellBoard(job, place, self._seen)
            except ImportError:  # anywidget or ipywidgets is missing: text
                pass
        return _CellText(job, place, self._seen)


class _OfACell(View):
    """What is done in a cell is no run: its page is not kept."""

    def keep(self, page: Page) -> None:
        pass


class _CellBoard(_OfACell, BoardView):
    """A board that gives way to what a quick cell would have left."""

    def __init__(self, job: Job, place: Cell, seen: Seen) -> None:
        super().__init__(job, place)
        self._seen = seen

    def _is_closed(self, drawing: Display) -> bool:
        return self._seen.widgets.closed(drawing)

    def finish(self, page: Page) -> None:
        parts = composed(cast("Errand", self.job), self.place, self._seen)
        with self._showing:
            self._over = True
            for place, display_id in self._places:
                if self._widget is not None:
                    said = parts[0] if parts and isinstance(parts[0], Text) else Text("stdout", "")
                    place.show(said.bundle(), display_id, update=True)
                    parts = [part for part in parts if part is not said]
                for part in parts:
                    part.show(place)
        if self._widget is not None:
            self._close()


class _CellNotes(_OfACell, SilentView):
    """Nothing but what the user should know in any case, such as where ranks are stuck."""


class _CellText(_OfACell, PlainView):
    """Text as it comes; drawings at the end."""

    def __init__(self, job: Job, place: Place, seen: Seen) -> None:
        super().__init__(job, place)
        self._seen = seen

    def finish(self, page: Page) -> None:
        if self.place.draws:
            for part in composed(cast("Errand", self.job), self.place, self._seen):
                if isinstance(part, Drawn):
                    part.show(self.place)

    def _described(self, drawing: Display) -> str:
        rich = self.place.draws and is_rich(self._seen.shown(drawing.data, self.place))
        return "" if rich else describe(drawing.data, self._seen.widgets)


# -- what an errand leaves


@dataclass(frozen=True)
class Text:
    """Lines of several ranks on one stream."""

    stream: str
    text: str

    def show(self, place: Place) -> None:
        """Write it."""
        place.write(self.stream, self.text)

    def bundle(self) -> Bundle:
        """Return it as a mime bundle."""
        screen = Screen()
        screen.feed(self.text)
        lines = "\n".join(line.html() for line in screen.take_all())
        return {"text/plain": self.text, "text/html": f'<pre style="{_PRE}">{lines}</pre>'}


@dataclass(frozen=True)
class Drawn:
    """A drawing that several ranks have made alike."""

    prefix: str
    data: Bundle
    metadata: Bundle

    def show(self, place: Place) -> None:
        """Show it below a line that says whose it is."""
        if self.prefix:
            place.write("stdout", f"{self.prefix}\n")
        place.show(self.data, metadata=self.metadata)


def composed(errand: Errand, place: Place, seen: Seen) -> list[Text | Drawn]:
    """Return what an errand leaves in a place, in order."""
    sheets = {part.index: _sheet(part, place, seen) for part in errand.ranks}
    drawn = place.draws and any(
        is_rich(drawing.data) for sheet in sheets.values() for drawing in sheet.drawings()
    )
    alone = errand.world_size == 1
    if drawn:
        return list(_by_rank(sheets, alone=alone))
    return list(_by_line(errand, place, seen, alone=alone))


def is_rich(data: Bundle) -> bool:
    """Tell whether there is more to a drawing than text."""
    return bool(data.keys() - {"text/plain"})


def _sheet(part: Part, place: Place, seen: Seen) -> Sheet:
    sheet = Sheet(NOTEBOOK.tail)
    piece = part.output.read(Cursor())
    sheet.dropped = piece.missed
    sheet.take(piece.entries)
    for drawing in sheet.drawings():
        drawing.data = seen.shown(drawing.data, place)
    return sheet


def _by_line(errand: Errand, place: Place, seen: Seen, *, alone: bool) -> Iterator[Text]:
    """Text only: each line once, with the ranks that said it."""
    bounds = bounds_of(place)

    def told(drawing: Display) -> str:
        return describe(drawing.data, seen.widgets)

    lines = {
        part.index: RankReader(cast("Any", part), bounds, told).read(bounds.per_look, last=True)
        for part in errand.ranks
    }
    for stream, run in groupby(fold(lines), lambda folded: folded.line.stream):
        text = "".join(f"{'' if alone else f'[{ranges(f.ranks)}] '}{f.line.text}\n" for f in run)
        yield Text(stream, text)


def _by_rank(sheets: dict[int, Sheet], *, alone: bool) -> Iterator[Text | Drawn]:
    """Text and drawings, in each rank's own order; ranks that are alike stand together."""
    groups: dict[str, list[int]] = {}
    for rank, sheet in sheets.items():
        groups.setdefault(_key(sheet.blocks()), []).append(rank)
    for ranks in groups.values():
        prefix = "" if alone else f"[{ranges(ranks)}]"
        sheet = sheets[ranks[0]]
        if sheet.dropped:
            yield Text("stdout", f"{prefix} ... {sheet.dropped:,} lines are only in the log\n")
        for block in sheet.blocks():
            if isinstance(block, Drawing) and is_rich(block.data):
                yield Drawn(prefix, block.data, block.metadata)
            else:
                yield Text("stdout", _prefixed(block, prefix))


def _prefixed(block: Block, prefix: str) -> str:
    if isinstance(block, Drawing):
        lines = describe(block.data, None).splitlines()
    else:
        lines = [line.ansi() for line in block]
    return "".join(f"{prefix} {line}\n" if prefix else f"{line}\n" for line in lines)


def _key(blocks: Sequence[Block]) -> str:
    told = [
        (block.data, block.metadata)
        if isinstance(block, Drawing)
        else [line.ansi() for line in block]
        for block in blocks
    ]
    return json.dumps(told, sort_keys=True, default=repr)
