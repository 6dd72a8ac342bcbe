"""What one rank has said and drawn: bounded in memory, whole on disk.

The job's loop writes here, views read. A reader keeps a `Cursor` of its own, so that several views
can follow one rank, each at its own pace; one that falls behind is told how many lines it missed.
"""

from __future__ import annotations

import codecs
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from nbstate.wire import MARK, ClearOutput, Display

if TYPE_CHECKING:
    from pathlib import Path

KEPT_CHARACTERS = 256 * 1024
PIECE_CHARACTERS = 16 * 1024
KEPT_ENTRIES = 4096
KEPT_DRAWINGS = 20

Rich = Display | ClearOutput
R = TypeVar("R", Rich, Rich | None)


@dataclass(slots=True)
class Text:
    """A piece of text as it came; `stream` is 'stdout' or 'stderr'."""

    stream: str
    text: str


@dataclass(slots=True)
class Slot:
    """The place of a drawing; `content` is None until its message has arrived."""

    number: int
    content: Rich | None = None


Entry = Text | Slot


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come: entries, whole lines and updates seen since the rank's start."""

    entry: int = 0
    line: int = 0
    update: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new to a reader: entries in order, and the lines it missed before them.

    Updates of drawings come last: they change what stands earlier, and have no place of their own.
    """

    entries: tuple[Text | Rich, ...]
    missed: int
    cursor: Cursor


@dataclass
class RankOutput:
    """The output of one rank.

    Parameters
    ----------
    path
        File that receives every byte that the rank writes, stdout and stderr as they came.
    """

    path: Path
    lines: int = 0
    log_error: OSError | None = None
    _entries: deque[tuple[Entry, int]] = field(default_factory=deque)
    _first: int = 0
    _characters: int = 0
    _early: dict[int, Rich | None] = field(default_factory=dict)
    _waiting: dict[int, Slot] = field(default_factory=dict)
    _held: dict[str, bytes] = field(default_factory=dict)
    _updates: dict[str, tuple[int, Display]] = field(default_factory=dict)
    _updated: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }
        self._log = open(self.path, "wb", buffering=0, opener=_private)  # noqa: SIM115 - job-long

    # -- written by the job

    def feed(self, stream: str, data: bytes) -> None:
        """Take bytes that the rank wrote to `stream`."""
        with self._lock:
            if b"\x1b" in data or stream in self._held:
                data = self._place_marked(stream, self._held.pop(stream, b"") + data)
            self._take(stream, data)

    def draw(self, message: Rich) -> None:
        """Take a drawing; it stands where the rank's mark is or will be in the text.

        An update has no mark: it changes the drawings of its display id, wherever they stand.
        """
        with self._lock:
            if isinstance(message, Display) and message.update:
                self._update(message)
                return
            slot = self._waiting.pop(message.number, None)
            if slot is None:
                self._early[message.number] = message
            else:
                slot.content = message
                self._drop_old_drawings()

    def take_back(self, model_id: str) -> None:
        """The widget with this id was closed: no reader who comes now sees it."""
        with self._lock:
            for entry, _ in self._entries:
                if isinstance(entry, Slot) and _shows(entry.content, model_id):
                    entry.content = None
            for number, drawing in self._early.items():
                if _shows(drawing, model_id):
                    self._early[number] = None

    def settle(self) -> None:
        """The rank's process is gone: what it left half said is not held back any longer."""
        with self._lock:
            for stream, data in list(self._held.items()):
                self._take(stream, data)
            self._held.clear()
            for stream, decoder in self._decoders.items():
                self._keep_text(stream, decoder.decode(b"", final=True))
            for number, message in sorted(self._early.items()):
                self._append(Slot(number, message))
            self._early.clear()
            self._waiting.clear()

    def finish(self) -> None:
        """Nothing more comes."""
        self.settle()
        with self._lock:
            self._log.close()

    # -- read by views and by the user

    def read(self, cursor: Cursor) -> Piece:
        """Return what has come since `cursor`, and where to go on."""
        with self._lock:
            line, missed = cursor.line, 0
            at = max(cursor.entry, self._first)
            if at - self._first < len(self._entries):
                missed = max(0, self._entries[at - self._first][1] - line)
                line += missed
            found: list[Text | Rich] = []
            for index in range(at - self._first, len(self._entries)):
                entry, _ = self._entries[index]
                if isinstance(entry, Slot):
                    if entry.content is None and entry.number in self._waiting:
                        break
                    if entry.content is not None:
                        found.append(entry.content)
                else:
                    found.append(entry)
                    line += entry.text.count("\n")
                at += 1
            found += [drawing for n, drawing in self._updates.values() if n > cursor.update]
            return Piece(tuple(found), missed, Cursor(at, line, self._updated))

    def tail(self, stream: str | None = None) -> str:
        """Return the bounded end of the text, of one stream or of both as they came."""
        with self._lock:
            return "".join(
                entry.text
                for entry, _ in self._entries
                if isinstance(entry, Text) and stream in (None, entry.stream)
            )

    def whole(self) -> str:
        """Return all the text of the rank, from its log."""
        return self.path.read_text(encoding="utf-8", errors="replace")

    # -- inner workings, under the lock

    def _place_marked(self, stream: str, data: bytes) -> bytes:
        at = 0
        for found in MARK.finditer(data):
            self._take(stream, data[at : found.start()])
            self._place(int(found[1]))
            at = found.end()
        rest = data[at:]
        cut = _unfinished_mark(rest)
        if cut is not None:
            self._held[stream] = rest[cut:]
            rest = rest[:cut]
        return rest

    def _place(self, number: int) -> None:
        slot = Slot(number)
        if number in self._early:
            slot.content = self._early.pop(number)
        else:
            self._waiting[number] = slot
        self._append(slot)

    def _take(self, stream: str, data: bytes) -> None:
        if not data:
            return
        if self.log_error is None:
            try:
                self._write(data)
            except OSError as error:  # a full disk must not end the run; the view says so
                self.log_error = error
        self._keep_text(stream, self._decoders[stream].decode(data))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._log.write(view) :]

    def _keep_text(self, stream: str, text: str) -> None:
        cut = max(0, len(text) - KEPT_CHARACTERS)
        self.lines += text.count("\n", 0, cut)
        # In pieces: what is dropped to make room is little more than the room that is needed.
        for start in range(cut, len(text), PIECE_CHARACTERS):
            piece = text[start : start + PIECE_CHARACTERS]
            self._characters += len(piece)
            self._append(Text(stream, piece))
            self.lines += piece.count("\n")

    def _update(self, message: Display) -> None:
        display_id = message.transient.get("display_id")
        if display_id is None:
            return
        self._updated += 1
        self._updates.pop(display_id, None)
        self._updates[display_id] = (self._updated, message)
        if len(self._updates) > KEPT_ENTRIES:
            del self._updates[next(iter(self._updates))]
        # Who has not read that far gets the drawing as it is now.
        for entry, _ in self._entries:
            if isinstance(entry, Slot):
                entry.content = _updated(entry.content, display_id, message)
        for number, drawing in self._early.items():
            self._early[number] = _updated(drawing, display_id, message)

    def _append(self, entry: Entry) -> None:
        self._entries.append((entry, self.lines))
        while self._characters > KEPT_CHARACTERS or len(self._entries) > KEPT_ENTRIES:
            gone, _ = self._entries.popleft()
            self._first += 1
            if isinstance(gone, Text):
                self._characters -= len(gone.text)
            else:
                self._waiting.pop(gone.number, None)
        if isinstance(entry, Slot):
            self._drop_old_drawings()

    def _drop_old_drawings(self) -> None:
        drawn = [
            entry
            for entry, _ in self._entries
            if isinstance(entry, Slot) and isinstance(entry.content, Display)
        ]
        for slot in drawn[:-KEPT_DRAWINGS]:
            slot.content = None


def _updated(drawing: R, display_id: str, message: Display) -> R:
    if isinstance(drawing, Display) and drawing.transient.get("display_id") == display_id:
        return replace(drawing, data=message.data, metadata=message.metadata)
    return drawing


def _shows(drawing: Rich | None, model_id: str) -> bool:
    return isinstance(drawing, Display) and drawing.widget == model_id


def _unfinished_mark(data: bytes) -> int | None:
    """Return where a mark begins that the next read will complete, or None."""
    at = data.rfind(b"\x1b")
    if at < 0:
        return None
    rest = data[at:]
    head = b"\x1b]nbstate;"
    number = rest[len(head) :]
    begun = rest.startswith(head) and number.isdigit() and len(number) < 20
    return at if begun or head.startswith(rest) else None


def _private(path: str, flags: int) -> int:
    import os

    return os.open(path, flags, 0o600)
