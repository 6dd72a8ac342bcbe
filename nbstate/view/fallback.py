"""Panes of plain HTML for a page on which the board's own widget does not answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nbstate.job.output import Cursor
from nbstate.view.page import section
from nbstate.view.sheet import Sheet

if TYPE_CHECKING:
    from nbstate.job import Job
    from nbstate.job.ranks import Rank

PATIENCE = 2.0
"""Seconds within which a live page says hello."""
EVERY = 1.0
TAIL = 40


class Fallback:
    """One `ipywidgets.HTML` per rank with its last lines, while nobody has said hello.

    Whether a page answers cannot always be heard: during a cell an older kernel does not listen.
    So both are there, at little cost, and the page hides these panes where the board is alive.
    """

    def __init__(self, job: Job) -> None:
        import ipywidgets

        self._panes = [Pane(rank, ipywidgets.HTML()) for rank in job.ranks]
        self.widget: Any = ipywidgets.VBox([pane.widget for pane in self._panes])
        self.widget.add_class("nbstate-fallback")
        self._next = time.monotonic() + PATIENCE
        self._open = True

    def look(self) -> float | None:
        """Refresh the panes now and then; return the seconds until the next time."""
        if not self._open:
            return None
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        self._next = now + EVERY
        changed = [pane.refresh() for pane in self._panes]
        return EVERY if any(changed) else None

    def close(self) -> None:
        """The board answers, or the job is over: away with the panes."""
        if self._open:
            self._open = False
            for widget in (self.widget, *(pane.widget for pane in self._panes)):
                close_whole(widget)


def close_whole(widget: Any) -> None:
    """Close a widget with the two that ipywidgets made along with it."""
    for part in (widget, widget.layout, getattr(widget, "style", None)):
        if part is not None:
            part.close()


class Pane:
    """The last lines of one rank in an HTML widget."""

    def __init__(self, rank: Rank, widget: Any) -> None:
        self.widget = widget
        self._rank = rank
        self._cursor = Cursor()
        self._sheet = Sheet(TAIL)
        self._state = ""

    def refresh(self) -> bool:
        """Show what is new, and tell whether anything was."""
        piece = self._rank.output.read(self._cursor)
        if not piece.entries and self._rank.state == self._state:
            return False
        self._cursor, self._state = piece.cursor, self._rank.state
        self._sheet.dropped += piece.missed
        self._sheet.take(piece.entries)
        self.widget.value = section(self._rank, self._sheet, opened=True, drawn=False)
        return True
