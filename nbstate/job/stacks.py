"""Stacks that a rank wrote with faulthandler: read, and told with the notebook's cells.

faulthandler writes them from a signal handler in C, so they arrive even from a rank that holds the
interpreter's lock or is about to die of a segmentation fault.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from nbstate.rank import failure

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_CURRENT = re.compile(r"^Current thread|^Stack \(most recent call first\)", re.MULTILINE)
_OUTERMOST = ("_bootstrap", "<module>")
SHOWN_OF_LIBRARIES = 4
"""How many lines of a library are shown, of those between two of the user's or below the last."""

_CALLER = "nbstate/rank/bootstrap.py"
_COLLECTIVES = ("torch/distributed/distributed_c10d.py",)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return failure.line_in_words(self.file, self.line, self.name)

    @property
    def is_users(self) -> bool:
        """Whether it is the user's own line, not a library's."""
        return failure.is_users(self.file)


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread's stack of one rank, innermost frame first."""

    frames: tuple[Frame, ...]

    @property
    def where(self) -> str:
        """The innermost line that is the user's own, or ``""``."""
        return next((str(frame) for frame in self.frames if frame.is_users), "")

    @property
    def collective(self) -> str:
        """The collective that the rank is in, or ``""``."""
        names = [f.name for f in self.frames if f.file.endswith(_COLLECTIVES)]
        public = [name for name in names if not name.startswith("_")]
        return public[-1] if public else ""

    @property
    def asks_the_user(self) -> bool:
        """Whether it waits for somebody to type an answer."""
        return any(frame.file.endswith("nbstate/rank/stdin.py") for frame in self.frames)

    def __str__(self) -> str:
        lines: list[str] = []
        for users, run in itertools.groupby(self._of_the_function(), lambda frame: frame.is_users):
            frames = [f"  {frame}" for frame in run]
            left_out = 0 if users else len(frames) - SHOWN_OF_LIBRARIES
            if left_out > 1:
                middle = f"  ... {left_out} lines of libraries ..."
                frames = [*frames[: SHOWN_OF_LIBRARIES - 1], middle, frames[-1]]
            lines += frames
        return "\n".join(lines)

    def _of_the_function(self) -> list[Frame]:
        """Leave out what called the function: nbstate, and the thread below it."""
        for depth, frame in enumerate(self.frames):
            if frame.file.endswith(_CALLER):
                return [frame for frame in self.frames[:depth] if not failure.is_ours(frame.file)]
        return list(self.frames)


def is_whole(text: str) -> bool:
    """Tell whether a stack has been written to its end: to its outermost frame, or a cut."""
    lines = text.splitlines()
    if not text.endswith("\n") or not _CURRENT.search(text):
        return False
    found = _FRAME.match(lines[-1])
    return lines[-1] == "  ..." or (found is not None and found["name"] in _OUTERMOST)


def latest(text: str) -> Stack:
    """Return the last stack of a main thread in what faulthandler wrote; it may be empty."""
    frames: list[Frame] = []
    reading = False
    for line in text.splitlines():
        if _CURRENT.match(line):
            frames, reading = [], True
        elif reading:
            found = _FRAME.match(line)
            if found is None:
                reading = False
            else:
                frames.append(Frame(found["file"], int(found["line"]), found["name"]))
    return Stack(tuple(frames))
