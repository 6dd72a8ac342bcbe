"""Where every rank is, asked of all at once: stacks through their pipes, collectives by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbstate.job.ranks import Line

ANSWER_WITHIN = 1.0
"""Seconds after which a rank that has not said where it is is taken to be unable to.

One that is stopped by a debugger writes no stack; one whose C code holds the interpreter's lock
writes its stack, and cannot say more.
"""


class Inquiry:
    """Asks the living ranks of a run where they are. Used from the job's loop.

    Parameters
    ----------
    at
        Has a function called after some seconds.
    """

    def __init__(self, at: Callable[[float, Callable[[], None]], None]) -> None:
        self._at = at
        self._waiting: list[Callable[[], None]] = []

    def ask(self, lines: Sequence[Line], then: Callable[[], None]) -> None:
        """Ask, and call `then` once all have answered or the time is up."""
        for line in lines:
            line.ask_where()
        self._waiting.append(then)
        self._at(ANSWER_WITHIN, lambda: self._no_longer(then))
        self.check(lines)

    def check(self, lines: Sequence[Line]) -> None:
        """See whether all have answered by now."""
        if self._waiting and all(line.said_where for line in lines if line.rank.alive):
            self.end()

    def _no_longer(self, then: Callable[[], None]) -> None:
        if then in self._waiting:
            self._waiting.remove(then)
            then()

    def end(self) -> None:
        """Tell those who asked: there is no more to come."""
        while self._waiting:
            self._waiting.pop(0)()
