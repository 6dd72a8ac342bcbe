"""How the ranks of a run are ended: politely first, and each step in its time.

at once         nothing, where a rank has failed: who meets it in a collective learns of that, and
                says so better than who is interrupted on the way there
a moment later  KeyboardInterrupt (SIGINT) in every rank that is at work
half a second   who sits in a collective is looked at, and looked at again: it is in torch's C++
                code, which hears no interrupt. If it still is there, waiting for a rank that
                has failed, or for others that wait too, SIGTERM spares everybody the rest
grace           SIGTERM
a second later  SIGKILL, for the rank and all that it has started
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbstate.job.ranks import Line
    from nbstate.wire import Collective

MOMENT = 0.1
"""Seconds between a rank's failure and the interrupt of the others."""

DEAF_AFTER = 0.3
"""Seconds between the interrupt, the first and the second look at ranks in a collective."""

TERM_TO_KILL = 1.0
"""Seconds between the second and the last step of ending a rank that does not stop."""


class Ending:
    """The end of one attempt of a run. Used from the job's loop.

    Parameters
    ----------
    lines
        The ranks.
    at
        Has a function called after some seconds.
    inquire
        Asks all ranks where they are, then calls what it is given.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        at: Callable[[float, Callable[[], None]], None],
        inquire: Callable[[Callable[[], None]], None],
    ) -> None:
        self._lines = lines
        self._at = at
        self._inquire = inquire

    def begin(self, grace: float, *, after_failure: bool) -> None:
        """Interrupt the ranks, and go on to the further steps until all are gone."""
        if after_failure:
            self._at(min(MOMENT, grace / 2), lambda: self._interrupt(after_failure))
        else:
            self._interrupt(after_failure)
        self._at(grace, self._terminate)
        self._at(grace + TERM_TO_KILL, self.kill)

    def _interrupt(self, after_failure: bool) -> None:
        for line in self._lines:
            if line.at_work and line.failed is None:
                line.told_to_stop = True
                line.ask_for_stacks()
                if not line.told_wrong:  # it is about to raise by itself
                    line.signal(signal.SIGINT)
        self._at(DEAF_AFTER, lambda: self._look_for_the_deaf(after_failure))

    def kill(self) -> None:
        """End every rank that is still there, with all that it started."""
        for line in self._alive():
            line.told_to_stop = True
            line.kill()

    def _alive(self) -> list[Line]:
        return [line for line in self._lines if line.rank.alive]

    def _terminate(self) -> None:
        for line in self._alive():
            line.signal(signal.SIGTERM)

    def _look_for_the_deaf(self, after_failure: bool) -> None:
        def look() -> None:
            before = {line: line.collective for line in self._alive() if line.at_work}
            self._at(
                DEAF_AFTER, lambda: self._inquire(lambda: self._end_the_deaf(before, after_failure))
            )

        if self._alive():
            self._inquire(look)

    def _end_the_deaf(self, before: dict[Line, Collective | None], after_failure: bool) -> None:
        at_work = [line for line in self._alive() if line.at_work]
        now = {line: found for line in at_work if (found := line.collective) is not None}
        deaf = {line: found for line, found in now.items() if found == before.get(line)}
        if after_failure or len(deaf) == len(at_work):
            for line, found in deaf.items():
                line.deaf_in = found
                line.signal(signal.SIGTERM)
