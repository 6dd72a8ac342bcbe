"""One thing that some ranks of a session do: sent, waited for, interrupted, and how it ended.

    cell --begin--> job's loop --Task--> ranks
    cell <-settled-- job's loop <-TaskDone-- ranks        (or a rank is gone)

To the views it has the face of a job whose ranks have said nothing before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbstate import travel, values
from nbstate.job import report
from nbstate.session import whereabouts
from nbstate.session.part import Part
from nbstate.session.release import Release
from nbstate.wire import Failed, Task

if TYPE_CHECKING:
    from nbstate.errors import RankFailure
    from nbstate.job.output import Cursor
    from nbstate.job.ranks import Line, RankState
    from nbstate.options import LaunchOptions
    from nbstate.session.job import SessionJob
    from nbstate.wire import TaskDone

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
Calls = Call | Mapping[int, Call]
"""One call for all ranks, or one for each."""

LOOK_EVERY = 0.25
"""Seconds between two looks at whether a rank waits for one that has failed."""


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

    Attributes
    ----------
    interrupted
        Its ranks were interrupted by the user.
    cut
        Connections between ranks were cut, so that their process groups are of no use any more.
    called_off
        Why its ranks were ended in the middle of it, '' where they were not.
    """

    error = None

    def __init__(
        self, job: SessionJob, number: int, name: str, starts: Mapping[int, Cursor]
    ) -> None:
        self.job = job
        self.number = number
        self.name = name
        self.parts = {index: Part(job.ranks[index], start) for index, start in starts.items()}
        self.ranks = tuple(self.parts.values())
        self.world_size = job.world_size
        self.where = job.where
        self.notes: list[str] = []
        self.interrupted = self.cut = False
        self.called_off = ""
        self.release = Release(self)
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

    def over_within(self, seconds: float) -> bool:
        """Wait until it is done, at most so long; tell whether it is."""
        with self._settled:
            return self._settled.wait_for(lambda: self.done, seconds)

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

    def note(self, line: str) -> None:
        """Keep a line that the user should read in its cell."""
        self.notes.append(line)
        self._changed()

    def stop(self) -> None:
        """Do what the first press of the stop button does; the ranks stay."""
        self.release.interrupt()

    def stacks(self) -> str:
        """Return where each rank is, as text."""
        self.job.loop.collect_stacks()
        return whereabouts.told(self)

    def stuck(self) -> str:
        """Return the report of ranks that do not get on and have just said where they are."""
        return whereabouts.stall(self)

    # -- what the session does

    @property
    def pending(self) -> list[int]:
        """The ranks that have not answered and are not gone."""
        return [part.index for part in self.ranks if part.state == "running"]

    @property
    def at_work(self) -> list[int]:
        """The pending ranks that were asked: others are idle, and hear no interrupt."""
        return [rank for rank in self.pending if self.parts[rank].asked]

    @property
    def finished(self) -> list[int]:
        """The ranks that have done their part and did not fail in it."""
        return [part.index for part in self.ranks if part.state == "done"]

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
            letters = [(self.pending, self._letter(calls, by_reference))]
        else:
            letters = []
            try:
                for rank, call in calls.items():
                    letters.append(([rank], self._letter(call, by_reference)))
            except BaseException:
                for _, (_, file) in letters:
                    _close(file)
                raise
        for ranks, (task, file) in letters:
            if not self.job.loop.ask(lambda r=ranks, t=task, f=file: self._send(r, t, f)):  # type: ignore[misc]
                _close(file)

    def _letter(self, call: Call, by_reference: Mapping[int, str]) -> tuple[Task, int | None]:
        payload, raw = travel.dump(call, "the call", by_reference)
        self.job.start_method.classes.update(travel.classes_here())
        buffers, file, length = values.share(raw)
        return Task(self.number, payload, buffers, length), file

    def _send(self, ranks: Sequence[int], task: Task, file: int | None) -> None:
        for rank in ranks:
            if self.interrupted:  # to pack it can take its time
                self._spare(self.job.loop.lines[rank])
            else:
                self.parts[rank].asked = True
                self.job.loop.lines[rank].send(task, file)
        _close(file)

    def _spare(self, line: Line) -> None:
        if self.parts[line.rank.index].state == "running":
            now = time.monotonic_ns()
            self._fail(line, Failed(now, "KeyboardInterrupt", "", "", interrupted=True))

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
            self.release.those_who_wait_in_vain()

    def _someone_failed(self) -> bool:
        return any(part.failure is not None for part in self.ranks)

    def _give_up(self) -> None:
        """The ranks are gone, and their loop has not told how: the session itself has failed."""
        for rank in self.pending:
            self._settle(self.parts[rank], "failed")
        raise RuntimeError(
            "this session has broken down, and its ranks are gone: session.refork() starts others"
        ) from self.job.broken

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
        if failed is None:
            self._settle(part, "done")
        else:
            self._fail(line, failed)

    def lost(self, line: Line) -> None:
        """A rank is gone."""
        part = self.parts.get(line.rank.index)
        if part is not None and part.state == "running":
            part.failure = report.failure_of(self.job, line)
            if self.called_off:
                part.failure.message = f"ended: {self.called_off}"
            elif line.told_to_stop:
                part.failure.message = "did not heed the interrupt and was ended"
            else:
                part.failure.message += part.last_words
            if not str(line.stack).strip():  # nothing of the user's is on it
                part.failure.traceback = ""
            self._settle(part, "failed")

    def _fail(self, line: Line, failed: Failed) -> None:
        part = self.parts[line.rank.index]
        part.failure = self._failure(line, failed)
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
        self._changed()

    def _changed(self) -> None:
        for event in tuple(self._listeners):
            event.set()


def _close(file: int | None) -> None:
    if file is not None:
        os.close(file)
