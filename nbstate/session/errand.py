"""One thing that some ranks of a session do: sent, waited for, interrupted, and how it ended.

    cell --begin--> job's loop --Task--> ranks
    cell <-settled-- job's loop <-TaskDone-- ranks        (or a rank is gone)

To the views it has the face of a job whose ranks have said nothing before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbstate import travel, values
from nbstate.job import report
from nbstate.job.output import Cursor
from nbstate.session.sockets import between
from nbstate.wire import Cut, Task

if TYPE_CHECKING:
    from pathlib import Path

    from nbstate.errors import RankFailure
    from nbstate.job import Job
    from nbstate.job.output import Piece, RankOutput
    from nbstate.job.ranks import Line, Rank, RankState
    from nbstate.options import LaunchOptions
    from nbstate.wire import Failed, TaskDone

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
Calls = Call | Mapping[int, Call]
"""One call for all ranks, or one for each."""

HEEDS_WITHIN = 1.0
"""Seconds in which a rank that is not stuck in C code has heeded an interrupt and told of it."""

LOOK_EVERY = 0.25
"""Seconds between two looks at whether a rank waits for one that has failed."""


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
    """One rank's part in an errand; views take it for a rank."""

    def __init__(self, rank: Rank, start: Cursor) -> None:
        self._rank = rank
        self.index = rank.index
        self.output = Since(rank.output, start)
        self.state: RankState = "running"
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
    def exitcode(self) -> int | None:
        """What the rank's process ended with."""
        return self._rank.exitcode


class Errand:
    """What ranks of a session were asked to do, and how far they are.

    Parameters
    ----------
    job
        The session's ranks.
    number
        Tells its answers from those of others.
    name
        What to call it, such as the function's name.
    starts
        The ranks that take part, and where the output of each begins.
    """

    error = None

    def __init__(self, job: Job, number: int, name: str, starts: Mapping[int, Cursor]) -> None:
        self.job = job
        self.number = number
        self.name = name
        self.parts = {index: Part(job.ranks[index], start) for index, start in starts.items()}
        self.ranks = tuple(self.parts.values())
        self.world_size = job.world_size
        self.where = job.where
        self.notes: list[str] = []
        self.interrupted = self.cut = False
        self._pressed = 0.0
        self._freed: set[int] = set()
        self._settled = threading.Condition()
        self._listeners: set[threading.Event] = set()
        self._began = time.monotonic()
        self._ended: float | None = None

    # -- what a view reads

    @property
    def options(self) -> LaunchOptions:
        """The session's options."""
        return self.job.options

    @property
    def done(self) -> bool:
        """Whether every rank has answered or is gone."""
        return not self.pending

    @property
    def state(self) -> str:
        """As of a job."""
        if not self.done:
            return "stopping" if self.interrupted else "running"
        return "failed" if any(part.failure for part in self.ranks) else "done"

    @property
    def elapsed(self) -> float:
        """Seconds since it began; when done, how long it took."""
        return (self._ended or time.monotonic()) - self._began

    def listen(self, event: threading.Event) -> None:
        """Have `event` set whenever something that a view shows may have changed."""
        self._listeners.add(event)
        self.job.listen(event)

    def unlisten(self, event: threading.Event) -> None:
        """No longer set `event`."""
        self._listeners.discard(event)
        self.job.unlisten(event)

    def stop(self) -> None:
        """Do what the first press of the stop button does; the ranks stay."""
        self.interrupt()

    def stacks(self) -> str:
        """Return where each rank is, as text."""
        return self.job.stacks()

    # -- what the session does

    @property
    def pending(self) -> list[int]:
        """The ranks that have not answered and are not gone."""
        return [part.index for part in self.ranks if part.state == "running"]

    @property
    def failures(self) -> dict[int, RankFailure]:
        """How ranks failed: those that did so by themselves first, in order of time."""
        failed = [part.failure for part in self.ranks if part.failure is not None]
        failed.sort(key=lambda failure: (failure.secondary, failure.when))
        return {failure.rank: failure for failure in failed}

    def begin(self, calls: Mapping[int, Call] | Call, by_reference: Mapping[int, str]) -> None:
        """Have each rank do its call; one call for all is packed once.

        Raises
        ------
        UnpicklableError
            A part of it cannot travel; no rank was asked.
        """
        if isinstance(calls, tuple):
            letters = [(self.pending, _letter(self.number, calls, by_reference))]
        else:
            packed = {
                rank: _letter(self.number, call, by_reference) for rank, call in calls.items()
            }
            letters = [([rank], letter) for rank, letter in packed.items()]
        for ranks, (task, file) in letters:
            if not self.job.loop.ask(lambda r=ranks, t=task, f=file: self._send(r, t, f)):  # type: ignore[misc]
                _close(file)

    def _send(self, ranks: Sequence[int], task: Task, file: int | None) -> None:
        for rank in ranks:
            self.job.loop.lines[rank].send(task, file)
        _close(file)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every rank has answered or is gone; tell whether that is so."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.pending:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._wait_a_while(left)
        return True

    def _wait_a_while(self, left: float | None) -> None:
        patience = LOOK_EVERY if self._someone_failed() else 1.0
        with self._settled:
            if not self.pending or self._settled.wait(min(patience, left or patience)):
                return
        if self.job.done:
            self._give_up()
        elif self._someone_failed() and not self.interrupted:
            self._free_those_who_wait_in_vain()

    @contextmanager
    def heeding_interrupts(self) -> Iterator[None]:
        """Have an interrupt of this cell meet the ranks, and not the code here that waits for them.

        The first one interrupts the ranks, a second one ends those that do not heed it.
        """

        def press(_number: int, _frame: object) -> None:
            # In a thread: this thread may hold a lock that is needed.
            threading.Thread(
                target=self._end_the_stuck if self.interrupted else self.interrupt
            ).start()
            self._pressed = self._pressed or time.monotonic()
            self.interrupted = True

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every rank that has not answered; all of them stay."""
        self.interrupted = True
        self._interrupt(self.pending)

    def _interrupt(self, ranks: Sequence[int]) -> None:
        """Signal these ranks; what holds up one that does not heed it, a collective, is cut."""

        def signal_them() -> None:
            for rank in ranks:
                if rank in self.pending:
                    self.job.loop.lines[rank].signal(signal.SIGINT)

        def cut_them() -> None:
            deaf = [rank for rank in ranks if rank in self.pending]
            if deaf:
                self.cut = True
                cut_off(self.job, deaf)

        self.job.loop.ask(signal_them)
        later = threading.Timer(HEEDS_WITHIN, lambda: self.job.loop.ask(cut_them))
        later.daemon = True
        later.start()

    def _end_the_stuck(self) -> None:
        with self._settled:  # one that is about to tell how far it was is not stuck
            left = self._pressed + HEEDS_WITHIN - time.monotonic()
            self._settled.wait_for(lambda: not self.pending, max(0.0, left))
        stuck = self.pending

        def kill() -> None:
            for rank in stuck:
                self.job.loop.lines[rank].told_to_stop = True
                self.job.loop.lines[rank].kill()

        self.job.loop.ask(kill)

    def _give_up(self) -> None:
        """The ranks are gone, and their loop has not told how: the session itself has failed."""
        for rank in self.pending:
            self.lost(self.job.loop.lines[rank])

    def _someone_failed(self) -> bool:
        return any(part.failure is not None for part in self.ranks)

    def _free_those_who_wait_in_vain(self) -> None:
        """A rank that has failed comes to no collective any more: interrupt who waits in one."""
        before = self._waiting()
        time.sleep(LOOK_EVERY / 5)  # a rank that only passes through is elsewhere by then
        now = self._waiting().items()
        stuck = {rank for rank, where in now if before.get(rank) == where} - self._freed
        self._freed |= stuck
        if stuck:
            self._interrupt(sorted(stuck))

    def _waiting(self) -> dict[int, object]:
        self.job.loop.collect_stacks()
        lines = [self.job.loop.lines[rank] for rank in self.pending]
        return {
            line.rank.index: (line.pulse.calls, line.collective)
            for line in lines
            if line.pulse is not None and line.collective is not None
        }

    # -- told by the job's loop

    def answered(self, line: Line, message: TaskDone) -> None:
        """A rank has done its part."""
        part = self.parts[line.rank.index]
        part.seconds = message.seconds
        failed = message.failed
        memory, line.shared = line.shared, None
        if failed is None:
            try:
                buffers = values.map_shared(message.buffers, memory)
                part.value = values.load(message.payload, buffers)
            except Exception as error:
                failed = report.not_rebuilt(error)
        _close(memory)
        if failed is not None:
            part.failure = self._failure(line, failed)
        self._settle(part, "done" if failed is None else "failed")

    def lost(self, line: Line) -> None:
        """A rank is gone."""
        part = self.parts.get(line.rank.index)
        if part is not None and part.state == "running":
            part.failure = report.failure_of(self.job, line)
            if line.told_to_stop:
                part.failure.message = "did not heed the interrupt and was ended"
            else:
                part.failure.message += _last_words(part)
            if not str(line.stack).strip():  # nothing of the user's is on it
                part.failure.traceback = ""
            self._settle(part, "failed")

    def _failure(self, line: Line, failed: Failed) -> RankFailure:
        from nbstate.errors import RankFailure

        assert line.rank.pid is not None
        real = any(f is not None and not f.secondary for f in (p.failure for p in self.ranks))
        return RankFailure(
            rank=line.rank.index,
            pid=line.rank.pid,
            exitcode=1,
            error_file=line.rank.error_file,
            type_name=failed.type_name,
            message=failed.message,
            traceback=failed.traceback,
            where=failed.where,
            collective=failed.collective,
            secondary=failed.peer_lost or (failed.interrupted and (real or self.interrupted)),
            exception=report.exception_of(failed),
            when=failed.when,
        )

    def _settle(self, part: Part, state: RankState) -> None:
        with self._settled:
            part.state = state
            if not self.pending:
                self._ended = time.monotonic()
            self._settled.notify_all()
        for event in tuple(self._listeners):
            event.set()


def cut_off(job: Job, ranks: Sequence[int]) -> None:
    """Shut down the connections of these ranks to all others. Used from the job's loop."""
    pids = {line.rank.index: line.rank.pid for line in job.loop.lines if line.rank.alive}
    for rank, found in between(pids, ranks, job.rendezvous.port).items():
        job.loop.lines[rank].send(Cut(found))


def _letter(number: int, call: Call, by_reference: Mapping[int, str]) -> tuple[Task, int | None]:
    payload, raw = travel.dump(call, "the call", by_reference)
    buffers, file, length = values.share(raw)
    return Task(number, payload, buffers, length), file


def _close(file: int | None) -> None:
    if file is not None:
        os.close(file)


def _last_words(part: Part) -> str:
    said = "".join(
        entry.text for entry in part.output.read(Cursor()).entries if hasattr(entry, "text")
    )
    lines = said.split("\n")
    last = [line for line in lines if line.strip()][-3:]
    return "\nits last words:\n" + "\n".join(f"  {line}" for line in last) if last else ""
