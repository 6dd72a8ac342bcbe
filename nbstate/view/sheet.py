"""What a rank has put on its page so far: text and drawings in order, as a notebook cell would.

Standard output and error have a screen of their own each. A line that nothing will change any more
is settled and stays where it is; lines still in the making (bars) stand at the end, so that a bar
on stderr is not torn by a print and stays in sight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbstate.job.output import Rich, Text
from nbstate.view.terminal import Line, Screen
from nbstate.wire import ClearOutput, Display

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(slots=True)
class Drawing:
    """A mime bundle in its place; later updates of the same display id change it."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None = None


Block = list[Line] | Drawing


@dataclass
class Sheet:
    """The text and drawings of one rank.

    Parameters
    ----------
    most
        Lines that are kept; older ones are counted in `dropped`.
    """

    most: int
    dropped: int = 0
    _blocks: list[Block] = field(default_factory=list)
    _screens: dict[str, Screen] = field(
        default_factory=lambda: {"stdout": Screen(), "stderr": Screen()}
    )
    _clear_at_next: bool = False

    def take(self, entries: Sequence[Text | Rich]) -> None:
        """Put what a rank said and drew on the sheet; of much text only the end."""
        kept, dropped = newest(entries, self.most)
        self.dropped += dropped
        for entry in kept:
            if isinstance(entry, ClearOutput):
                self._clear_at_next = True
                if not entry.wait:
                    self._clear()
            elif isinstance(entry, Text):
                self._clear()
                screen = self._screens[entry.stream]
                screen.feed(entry.text)
                self._settle(screen.take_settled())
            else:
                self._draw(entry)

    def blocks(self) -> list[Block]:
        """Return the blocks from first to last, unfinished lines at the end."""
        unfinished = [
            line for screen in self._screens.values() for line in screen.lines if line.text
        ]
        *before, last = self._blocks or [[]]
        if isinstance(last, list):
            last = last + unfinished
        elif unfinished:
            before, last = [*before, last], unfinished
        return [*before, last] if last else before

    def drawings(self) -> Iterator[Drawing]:
        """Yield the drawings, in order."""
        return (block for block in self._blocks if isinstance(block, Drawing))

    def last_line(self) -> str:
        """Return the text of the last line that is not empty, or ''."""
        for block in reversed(self.blocks()):
            if isinstance(block, list):
                for line in reversed(block):
                    if line.text.strip():
                        return line.text.strip()
        return ""

    def _draw(self, drawing: Display) -> None:
        display_id = drawing.transient.get("display_id")
        if drawing.update:
            for old in self.drawings():
                if display_id is not None and old.display_id == display_id:
                    old.data, old.metadata = drawing.data, drawing.metadata
            return
        self._clear()
        self._settle(self._screens["stdout"].take_all())
        self._blocks.append(Drawing(drawing.data, drawing.metadata, display_id))

    def _settle(self, lines: list[Line]) -> None:
        if not lines:
            return
        if self._blocks and isinstance(self._blocks[-1], list):
            self._blocks[-1].extend(lines)
        else:
            self._blocks.append(lines)
        texts = [block for block in self._blocks if isinstance(block, list)]
        over = sum(map(len, texts)) - self.most
        for text in texts:
            if over <= 0:
                break
            cut = min(over, len(text))
            del text[:cut]
            over -= cut
            self.dropped += cut

    def _clear(self) -> None:
        if self._clear_at_next:
            self._clear_at_next = False
            self._blocks.clear()
            for screen in self._screens.values():
                screen.take_all()


def newest(entries: Sequence[Text | Rich], most: int) -> tuple[list[Text | Rich], int]:
    """Return the end of `entries`, and how many lines of text stand before it.

    Drawings are all kept; of the text about the last `most` lines.
    """
    kept: list[Text | Rich] = []
    room, dropped = most, 0
    for entry in reversed(entries):
        if not isinstance(entry, Text):
            kept.append(entry)
            continue
        count = entry.text.count("\n")
        if count <= room:
            kept.append(entry)
            room -= count
        elif room >= 0:
            end = len(entry.text)
            for _ in range(room + 1):
                end = entry.text.rindex("\n", 0, end)
            kept.append(Text(entry.stream, entry.text[end + 1 :]))
            dropped += count - room
            room = -1
        else:
            dropped += count
    return kept[::-1], dropped
