"""What the ranks do, as the changes that a board's page is sent: bounded whatever they print."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from nbstate.job.output import Cursor, Text
from nbstate.view.sheet import newest

if TYPE_CHECKING:
    from nbstate.job.output import Rich
    from nbstate.job.ranks import Rank

Change = list[Any]

LINES_PER_FLUSH = 100
CHARACTERS_PER_SECOND = 200_000
BURST = 64_000
SNAPSHOT = 8192
"""Characters of a rank's text that a page which comes late begins with."""

_STREAMS = {"stdout": 0, "stderr": 1}


class Allowance:
    """Characters that may be sent now: so many per second, with room for a burst."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = time.monotonic()

    def share(self, ranks: int) -> int:
        """Return what each of `ranks` may send at this flush."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._at) * CHARACTERS_PER_SECOND)
        self._at = now
        return max(0, int(self._left)) // max(1, ranks)

    def spend(self, characters: int) -> None:
        """Take off what was sent."""
        self._left -= characters


class RankChanges:
    """Reads one rank's output for the page, and remembers the end of what it sent."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._pane = rank.index  # as the page knows it, whatever the rank's number becomes
        self.recent: deque[Change] = deque()
        self._cursor = Cursor()
        self._size = 0

    def read(self, characters: int) -> list[Text | Rich]:
        """Return what is new; of much text only the end, after a line that says so."""
        piece = self.rank.output.read(self._cursor)
        self._cursor = piece.cursor
        kept, dropped = newest(piece.entries, LINES_PER_FLUSH)
        kept, cut = _shortened(kept, characters)
        left_out = piece.missed + dropped + cut
        if left_out:
            kept.insert(0, Text("stdout", _marker(left_out, self.rank)))
        return kept

    def text(self, entry: Text) -> Change:
        """Return the change that a text makes."""
        return self._remember([self._pane, _STREAMS[entry.stream], entry.text])

    def draw(self, model_id: str) -> Change:
        """Return the change that a new drawing makes."""
        return self._remember([self._pane, "draw", model_id])

    def drop(self, model_id: str) -> Change:
        """Return the change that the loss of a drawing makes."""
        self.recent = deque(c for c in self.recent if c[1:] != ["draw", model_id])
        return [self._pane, "drop", model_id]

    def clear(self) -> Change:
        """Return the change that an empty page makes."""
        self.recent.clear()
        self._size = 0
        return [self._pane, "clear"]

    def _remember(self, change: Change) -> Change:
        self.recent.append(change)
        self._size += _length(change)
        while self._size > SNAPSHOT:
            oldest = next(i for i, c in enumerate(self.recent) if _length(c))
            length = _length(self.recent[oldest])
            if oldest == len(self.recent) - 1:
                break
            self._size -= length
            del self.recent[oldest]
        return change


def _length(change: Change) -> int:
    return len(change[2]) if change[1] in _STREAMS.values() else 0


def _marker(lines: int, rank: Rank) -> str:
    noun = "line" if lines == 1 else "lines"
    return f"\x1b[0m\x1b[2m... {lines:,} {noun} only in {rank.output.path}\x1b[0m\n"


def _shortened(entries: list[Text | Rich], room: int) -> tuple[list[Text | Rich], int]:
    """Return the end of `entries` with at most `room` characters of text, and the lines cut."""
    kept: list[Text | Rich] = []
    cut = 0
    for entry in reversed(entries):
        if not isinstance(entry, Text):
            kept.append(entry)
            continue
        text = entry.text
        if len(text) > room:
            start = len(text) - room
            start = text.find("\n", start) + 1 or start  # whole lines, where there is a line's end
            cut += text.count("\n", 0, start)
            text, room = text[start:], 0
        room = max(0, room - len(text))
        if text:
            kept.append(Text(entry.stream, text))
    return kept[::-1], cut
