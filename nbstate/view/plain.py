"""The view as text: for terminals, for headless runs, and wherever nothing better is possible."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from string import Template
from typing import TYPE_CHECKING

from nbstate.job.output import Cursor, Text
from nbstate.start.place import ROLE
from nbstate.view.fold import Folded, Said, fold, ranges
from nbstate.view.follow import View
from nbstate.view.page import describe, summary
from nbstate.view.sheet import newest
from nbstate.view.terminal import Screen
from nbstate.wire import WIDGET_MIME, Display

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbstate.job import Job
    from nbstate.job.ranks import Rank
    from nbstate.view.page import Page
    from nbstate.view.publish import Place
    from nbstate.view.terminal import Line

MESSAGES_PER_LOOK = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much text is shown, and how soon.

    Parameters
    ----------
    per_look
        Lines of all ranks together at one look.
    head, tail
        Lines of a rank that are shown at most: its first ones as they come, its last ones at the
        end. None: no limit.
    hold
        Seconds for which a line waits for other ranks to say it too, or for bars above it to move.
    """

    per_look: int
    head: int | None
    tail: int
    hold: float


TERMINAL = Bounds(per_look=4000, head=None, tail=0, hold=0.2)
NOTEBOOK = Bounds(per_look=200, head=2000, tail=200, hold=0.2)
# Nobody watches a headless run, but its text is compared with that of the last one: it waits long
# enough that the same lines come out in the same order, whichever rank was faster.
HEADLESS = Bounds(per_look=4000, head=2000, tail=200, hold=60.0)


def bounds_of(place: Place) -> Bounds:
    """Return the bounds that suit a place."""
    if not place.bounded:
        return TERMINAL
    return NOTEBOOK if place.watched else HEADLESS


class RankReader:
    """Turns the output of one rank into whole lines, and counts those it leaves out."""

    def __init__(self, rank: Rank, bounds: Bounds, describe: Callable[[Display], str]) -> None:
        self._rank = rank
        self._describe = describe
        self._changing: list[Display] = []
        self._bounds = bounds
        self._cursor = Cursor()
        self._screens = {"stdout": Screen(), "stderr": Screen()}
        self._heard = dict.fromkeys(self._screens, 0.0)
        self._shown = 0
        self._skipped = 0
        self._tail: deque[Said] = deque(maxlen=bounds.tail)

    def read(self, most: int, *, last: bool) -> list[Said]:
        """Return the lines that are whole by now, at most `most`; with `last`, all that is left."""
        piece = self._rank.output.read(self._cursor)
        self._cursor = piece.cursor
        entries, dropped = newest(piece.entries, most)
        self._skipped += piece.missed + dropped
        lines: list[Said] = []
        for entry in entries:
            if isinstance(entry, Text):
                self._heard[entry.stream] = time.monotonic()
                self._screens[entry.stream].feed(entry.text)
                lines += _said(entry.stream, self._screens[entry.stream].take_settled())
            elif isinstance(entry, Display):
                lines += self._drawn(entry)
        lines += self._below_bars()
        if last:
            for stream, screen in self._screens.items():
                lines += _said(stream, screen.take_all())
            for drawing in self._changing:
                lines += _lines(self._describe(drawing))
        return self._within_bounds(lines, last=last)

    @property
    def waits(self) -> bool:
        """Whether there are lines that come when nothing else does."""
        return any(screen.may_be_over for screen in self._screens.values())

    def _below_bars(self) -> list[Said]:
        """Return bars that have not moved for a while, and the lines below them."""
        lines: list[Said] = []
        for stream, screen in self._screens.items():
            quiet = time.monotonic() - self._heard[stream]
            if screen.may_be_over and quiet >= self._bounds.hold:
                screen.reach = 0
                lines += _said(stream, screen.take_settled())
        return lines

    def _drawn(self, drawing: Display) -> list[Said]:
        """Return the lines of a drawing; one that may still change is told at its last state."""
        display_id = drawing.transient.get("display_id")
        if drawing.update:
            self._changing = [
                drawing if old.transient.get("display_id") == display_id else old
                for old in self._changing
            ]
            return []
        if display_id is not None or WIDGET_MIME in drawing.data:
            self._changing.append(drawing)
            return []
        return _lines(self._describe(drawing))

    def _within_bounds(self, lines: list[Said], *, last: bool) -> list[Said]:
        head = self._bounds.head
        room = len(lines) if head is None else max(0, head - self._shown)
        shown = lines[:room] if room and not self._tail else []
        self._shown += len(shown)
        for line in lines[len(shown) :]:
            self._skipped += len(self._tail) == self._tail.maxlen
            self._tail.append(line)
        if shown and self._skipped:
            shown.insert(0, self._marker())
        if last and self._tail:
            shown += ([self._marker()] if self._skipped else []) + list(self._tail)
        elif last and self._skipped:
            shown.append(self._marker())
        return shown

    def _marker(self) -> Said:
        skipped, self._skipped = self._skipped, 0
        noun = "line" if skipped == 1 else "lines"
        return Said("stdout", f"... {skipped:,} {noun} only in {self._rank.output.path}")


class PlainView(View):
    """Prefixed lines, equal ones folded, and a closing line."""

    def __init__(self, job: Job, place: Place) -> None:
        super().__init__(job, place)
        self._bounds = bounds_of(place)
        self._readers = [RankReader(rank, self._bounds, self._described) for rank in job.ranks]
        self._held: dict[int, list[Said]] = {}
        self._since = 0.0

    def look(self) -> float | None:
        """Write the lines that have waited long enough for the other ranks."""
        self.tell_notes()
        done = self.job.done
        share = max(1, self._bounds.per_look // max(1, len(self._readers)))
        for rank, reader in zip(self.job.ranks, self._readers, strict=True):
            lines = reader.read(share, last=done)
            if lines:
                self._since = self._since if self._held else time.monotonic()
                self._held.setdefault(rank.index, []).extend(lines)
        if not self._held:
            waits = any(reader.waits for reader in self._readers)
            return self._bounds.hold if waits else None
        left = self._since + self._bounds.hold - time.monotonic()
        if not done and left > 0 and not self._everyone_said_the_same():
            return left
        self._write(fold(self._held))
        self._held.clear()
        return None

    def finish(self, page: Page) -> None:
        """Write the closing line, and the drawings where there are any and a place for them."""
        self.tell_notes()
        for rank in self.job.ranks:
            if rank.output.log_error is not None:
                self.place.write("stderr", f"[{rank.index}] {log_trouble(rank)}\n")
        self.place.write("stdout", summary(self.job, timed=self.place.watched) + "\n")
        if self.place.draws and page.drawings:
            self.place.show(page.bundle())

    def _described(self, drawing: Display) -> str:
        if self.widgets is not None and self.widgets.closed(drawing):
            return ""
        return describe(drawing.data, self.widgets)

    def _everyone_said_the_same(self) -> bool:
        said = list(self._held.values())
        return len(said) == len(self._readers) and all(lines == said[0] for lines in said[1:])

    def _write(self, lines: Sequence[Folded]) -> None:
        runs = [(stream, list(run)) for stream, run in groupby(lines, lambda f: f.line.stream)]
        if len(runs) > MESSAGES_PER_LOOK:
            runs = [(s, [f for f in lines if f.line.stream == s]) for s in ("stdout", "stderr")]
        for stream, run in runs:
            self.place.write(stream, "".join(self._worded(folded) for folded in run))

    def _worded(self, folded: Folded) -> str:
        return f"{self._prefix(folded.ranks)}{folded.line.text}\n"

    def _prefix(self, ranks: Sequence[int]) -> str:
        template = self.job.options.log_line_prefix_template
        if template is not None:
            first = self.job.ranks[0].index
            local = ranges([rank - first for rank in ranks])
            names = {"role_name": ROLE, "rank": ranges(ranks), "local_rank": local}
            return Template(template).safe_substitute(names)
        return "" if self.job.world_size == 1 else f"[{ranges(ranks)}] "


class SilentView(View):
    """Nothing but the job's notes; an error is raised in the cell in any case."""

    def look(self) -> float | None:
        """Write new notes."""
        self.tell_notes()
        return None


def log_trouble(rank: Rank) -> str:
    """Return the line that says that a rank's log is not whole."""
    error = rank.output.log_error
    return f"its log {rank.output.path} is incomplete: {error}" if error is not None else ""


def _said(stream: str, lines: Sequence[Line]) -> list[Said]:
    return [Said(stream, line.ansi()) for line in lines]


def _lines(text: str) -> list[Said]:
    return [Said("stdout", line) for line in text.splitlines()]
