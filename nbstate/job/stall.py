"""Ranks that no longer get on: noticed by their silence, and told with what each of them waits for.

A sign of life is text, a message, a pulse (the main thread has moved) or use of the CPU, by a rank
or by what it has started. A rank that waits in a collective may well burn a core; there only the
pulse counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from nbstate.job import processes, whereabouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbstate.job.ranks import Line
    from nbstate.job.run import Run

BUSY = 0.05
"""Share of a core above which a rank counts as at work: looking at a clock now and then is less."""


CLOCK = 0.02
"""Seconds below which CPU time says nothing: the system counts it in ticks."""


def _is_work(used: float, elapsed: float) -> bool:
    return used > max(BUSY * elapsed, CLOCK)


class Errand(Protocol):
    """What ranks that stay were asked to do: they are at work on that, or on nothing."""

    @property
    def pending(self) -> Sequence[int]:
        """The ranks that are at it."""

    def stuck(self) -> str:
        """Return the report of those, once they have just said where they are."""


class Watch:
    """Looks at the ranks of one run now and then. Used from the job's loop.

    Parameters
    ----------
    job
        The run.
    inquire
        Asks all ranks where they are, then calls what it is given.

    Attributes
    ----------
    errand
        Of ranks that stay: tells what they are doing now, if anything. None: it is a run.
    """

    def __init__(self, job: Run, inquire: Callable[[Callable[[], None]], None]) -> None:
        self._job = job
        self._inquire = inquire
        self.errand: Callable[[], Errand | None] | None = None
        self._limit = job.options.stall_after
        self.every = 1.0 if self._limit is None else min(1.0, self._limit / 4)
        self._moved = self._spoke = time.monotonic()
        self._used: dict[Line, float] = {}
        self._told_of_silence = self._told_of_the_late = False
        self._family_cpu: float | None = None

    def moved(self) -> None:
        """A rank has shown a sign of life."""
        self._moved = time.monotonic()
        self._told_of_silence = False
        self._used.clear()
        self._family_cpu = None

    def spoke(self) -> None:
        """A rank has written something or has returned."""
        self.moved()
        self._spoke = self._moved

    def look(self) -> None:
        """Read the ranks' memory and use of the CPU, and tell if nothing gets on any more."""
        now = time.monotonic()
        at_work = self._at_work()
        for line in self._job.loop.lines:
            used = line.measure() if line.at_work else 0.0
            waits = line.pulse is not None and line.pulse.collective is not None
            if waits or line not in at_work:
                continue
            self._used[line] = self._used.get(line, 0.0) + used
            if _is_work(self._used[line], now - self._moved):
                self.moved()
        if self._limit is not None and self._job.loop.reason is None and self._at_work():
            self._judge(now, self._limit)

    def _at_work(self) -> list[Line]:
        lines = [line for line in self._job.loop.lines if line.at_work]
        if self.errand is None:
            return lines
        errand = self.errand()
        pending = [] if errand is None else errand.pending
        return [line for line in lines if line.rank.index in pending]

    def _judge(self, now: float, limit: float) -> None:
        some_are_done = any(line.rank.state == "done" for line in self._job.loop.lines)
        silent = now - self._moved
        if some_are_done and now - self._spoke >= limit and not self._told_of_the_late:
            self._told_of_the_late = self._told_of_silence = True
            self._inquire(self._tell)
        elif silent >= limit / 2 and self._family_cpu is None:
            self._family_cpu = self._used_by_families()
        elif silent >= limit and not self._told_of_silence:
            if _is_work(self._used_by_families() - (self._family_cpu or 0), silent / 2):
                self.moved()  # a worker of a rank is at work
            else:
                self._told_of_silence = True
                self._inquire(self._tell)

    def _used_by_families(self) -> float:
        pids = [line.rank.pid for line in self._at_work() if line.rank.pid is not None]
        return sum(processes.cpu_of_family(pid) for pid in pids)

    def _tell(self) -> None:
        if self._job.loop.reason is not None or not self._at_work():
            return  # meanwhile the run is at its end
        if any(line.stack.asks_the_user for line in self._job.loop.lines):
            self.spoke()  # not stuck: somebody has yet to answer
            return
        if self.errand is None:
            self._job.note(whereabouts.stall(self._job))
        elif (errand := self.errand()) is not None:
            self._job.note(errand.stuck())
