"""One rank's part in an errand: what it has said since it was asked, and how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbstate.job.output import Cursor, Text

if TYPE_CHECKING:
    from pathlib import Path

    from nbstate.errors import RankFailure
    from nbstate.job.output import Piece, RankOutput
    from nbstate.job.ranks import Rank, RankState


class Since:
    """A rank's output from `start` on."""

    def __init__(self, output: RankOutput, start: Cursor) -> None:
        self._output = output
        self._start = start
        self._lines = output.lines

    def read(self, cursor: Cursor) -> Piece:
        """Return what has come since `cursor`."""
        return self._output.read(self._start if cursor == Cursor() else cursor)

    @property
    def lines(self) -> int:
        """How many lines the rank has written since."""
        return self._output.lines - self._lines

    @property
    def path(self) -> Path:
        """The log of the session."""
        return self._output.path

    @property
    def log_error(self) -> OSError | None:
        """Why the log is not whole, if it is not."""
        return self._output.log_error


class Part:
    """One rank's part in an errand; views take it for a rank.

    Attributes
    ----------
    asked
        The rank was sent what it is to do.
    """

    def __init__(self, rank: Rank, start: Cursor) -> None:
        self._rank = rank
        self.index = rank.index
        self.output = Since(rank.output, start)
        self.state: RankState = "running"
        self.asked = False
        self.seconds: float | None = None
        self.failure: RankFailure | None = None
        self.value: Any = None

    @property
    def doing(self) -> str:
        """What it is doing, '' when it has done its part."""
        return self._rank.doing if self.state == "running" else ""

    @property
    def memory(self) -> int | None:
        """The rank's resident memory in bytes."""
        return self._rank.memory

    @property
    def pid(self) -> int | None:
        """The rank's process."""
        return self._rank.pid

    @property
    def last_words(self) -> str:
        """The last lines that it wrote, below a heading; '' without any."""
        entries = self.output.read(Cursor()).entries
        said = "".join(entry.text for entry in entries if isinstance(entry, Text))
        lines = [line for line in said.split("\n") if line.strip()][-3:]
        return "\n".join(["\nits last words:", *(f"  {line}" for line in lines)]) if lines else ""

    @property
    def exitcode(self) -> int | None:
        """What the rank's process ended with."""
        return self._rank.exitcode
