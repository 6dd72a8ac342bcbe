"""Ranks freed from what they are in: by the stop button, or for want of one that has failed.

interrupt ------> signal; HEEDS_WITHIN later what a rank is stuck in, a collective, is cut
second press ---> those that have not heeded it are ended
a rank failed --> those that wait for it in a collective are interrupted

What was cut is of no use any more: `Team` has the ranks make their process groups anew.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbstate.session.sockets import between
from nbstate.wire import Cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbstate.job import Job
    from nbstate.session.errand import Errand

HEEDS_WITHIN = 1.0
"""Seconds in which a rank that is not stuck in C code has heeded an interrupt and told of it."""

PASSES_WITHIN = 0.05
"""Seconds after which a rank that only passes through a collective is elsewhere."""


class Release:
    """Frees the ranks of one errand."""

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._loop = errand.job.loop
        self._pressed = 0.0
        self._freed: set[int] = set()

    @contextmanager
    def by_the_stop_button(self) -> Iterator[None]:
        """Have an interrupt of this cell meet the ranks, and not the code here that waits for them.

        The first one interrupts the ranks, a second one ends those that do not heed it.
        """

        def press(_number: int, _frame: object) -> None:
            # In a thread: this thread may hold a lock that is needed.
            act = self._end_the_stuck if self._errand.interrupted else self.interrupt
            self._note_press()
            threading.Thread(target=act).start()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every rank that has not answered; all of them stay.

        A rank that has not been asked yet never is.
        """
        self._note_press()
        self._interrupt(self._errand.pending)

    def _note_press(self) -> None:
        self._pressed = self._pressed or time.monotonic()
        self._errand.interrupted = True

    def _interrupt(self, ranks: Sequence[int]) -> None:
        """Signal these ranks; what holds up one that does not heed it, a collective, is cut."""

        def signal_them() -> None:
            for rank in ranks:
                if rank in self._errand.at_work:
                    self._loop.lines[rank].signal(signal.SIGINT)

        def cut_them() -> None:
            deaf = [rank for rank in ranks if rank in self._errand.at_work]
            if deaf:
                self._errand.cut = True
                cut_off(self._errand.job, deaf, self._errand.job.rendezvous.port)

        self._loop.ask(signal_them)
        later = threading.Timer(HEEDS_WITHIN, lambda: self._loop.ask(cut_them))
        later.daemon = True
        later.start()

    def _end_the_stuck(self) -> None:
        # One that is about to tell how far it was is not stuck.
        self._errand.over_within(max(0.0, self._pressed + HEEDS_WITHIN - time.monotonic()))
        stuck = self._errand.at_work

        def kill() -> None:
            for rank in stuck:
                self._loop.lines[rank].told_to_stop = True
                self._loop.lines[rank].kill()

        self._loop.ask(kill)

    def those_who_wait_in_vain(self) -> None:
        """A rank that has failed comes to no collective any more: interrupt who waits in one."""
        before = self._waiting()
        time.sleep(PASSES_WITHIN)
        now = self._waiting().items()
        stuck = {rank for rank, where in now if before.get(rank) == where} - self._freed
        self._freed |= stuck
        if stuck:
            self._interrupt(sorted(stuck))

    def _waiting(self) -> dict[int, object]:
        self._loop.collect_stacks()
        lines = [self._loop.lines[rank] for rank in self._errand.pending]
        return {
            line.rank.index: (line.pulse.calls, line.collective)
            for line in lines
            if line.pulse is not None and line.collective is not None
        }


def cut_off(job: Job, ranks: Sequence[int], store_port: int) -> None:
    """Shut down the connections of these ranks to all others. Used from the job's loop."""
    pids = {line.rank.index: line.rank.pid for line in job.loop.lines if line.rank.alive}
    for rank, found in between(pids, ranks, store_port).items():
        job.loop.lines[rank].send(Cut(found))
