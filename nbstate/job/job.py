"""The ranks of one run: started, followed, stopped, waited for, and what they gave back."""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import itertools
import os
import threading
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from nbstate.job import report, whereabouts
from nbstate.job.loop import Loop
from nbstate.job.ranks import Line, Rank
from nbstate.metrics import Metrics
from nbstate.results import RankResults
from nbstate.start.nodes import OneNode
from nbstate.start.place import MARK
from nbstate.wire import Logged, Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from nbstate.errors import RankError, RankFailure
    from nbstate.options import LaunchOptions
    from nbstate.start import Start
    from nbstate.start.nodes import MeetingPoint, Nodes
    from nbstate.view.timeline import Timeline
    from nbstate.wire import Span

JobState = Literal["starting", "running", "stopping", "done", "failed", "stopped"]


class Shown(Protocol):
    """What a job knows of a view."""

    def join(self) -> object:
        """Wait until everything is shown."""


_alive: weakref.WeakSet[Job] = weakref.WeakSet()
_numbers = itertools.count(1)


class Job:
    """A function that runs on N ranks.

    Made by `launch` and by ``notebook_launcher(..., wait=False)``. As the last line of a cell it
    shows its board.

    Attributes
    ----------
    name
        The function's name.
    ranks : tuple of Rank
        One handle per local rank, with its ``pid``, ``state``, ``stdout`` and more.
    state
        ``"starting"``, ``"running"``, ``"stopping"``, ``"done"``, ``"failed"`` or ``"stopped"``.
    log_dir
        Folder with the whole output of each rank.
    notes
        What else the user should know, in one line each.

    Examples
    --------
    >>> def train(lr):
    ...     print(f"{lr=}")
    ...     return PartialState().process_index * lr
    >>> job = launch(train, 0.1, num_processes=2)
    >>> job.wait()
    RankResults([0.0, 0.1])
    >>> job.ranks[0].stdout.splitlines()
    ['lr=0.1']
    """

    def __init__(
        self,
        name: str,
        start_method: Start,
        options: LaunchOptions,
        local_ranks: int,
        *,
        where: str,
        log_dir: Path,
        nodes: Nodes | None = None,
    ) -> None:
        self.name = name
        self.start_method = start_method
        self.options = options
        self.nodes = OneNode(local_ranks, options) if nodes is None else nodes
        self.world_size = self.nodes.world_size
        self.where = where
        self.log_dir = log_dir
        self.number = next(_numbers)
        self.run_id = f"nbstate-{os.getpid()}-{self.number}"
        self.state: JobState = "starting"
        self.notes: list[str] = []
        self.restarts = self.nodes.restarts
        self.error: RankError | None = None
        self.ranks = tuple(Rank(self.nodes.offset + local, log_dir) for local in range(local_ranks))
        self.loop = Loop(self)
        self._values: dict[int, Any] = {}
        self._failures: dict[int, RankFailure] = {}
        self._weights: list[Mapping[str, Any]] = []
        self._broken: BaseException | None = None
        self.page: Any = None  # what its view leaves of it
        self.handlers: dict[type, Callable[[Rank, Any], None]] = {}
        self.on_failure: Callable[[Rank], None] | None = None
        self.metrics = Metrics()
        self.handlers[Logged] = self.metrics.take
        self._spans: dict[int, list[Span]] = {rank.index: [] for rank in self.ranks}
        self.handlers[Traced] = lambda rank, told: self._spans[rank.index].extend(told.spans)
        self._closing_notes: list[str] = []
        self._views: list[weakref.ref[Shown]] = []
        self._listeners: set[threading.Event] = set()
        self._ready = threading.Event()
        self._over = threading.Event()
        self._began = time.monotonic()
        self._ended: float | None = None

    # -- what the user does

    @property
    def done(self) -> bool:
        """Whether every rank is gone, however it ended."""
        return self._over.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since the start; of a finished run, how long it took."""
        return (self._ended or time.monotonic()) - self._began

    def wait(self, timeout: float | None = None) -> RankResults:
        """Wait for every rank and return what they returned.

        Parameters
        ----------
        timeout
            Seconds to wait at most; None: for ever. The run goes on when they are over.

        Returns
        -------
        RankResults
            One value per local rank, in rank order; per rank of all nodes with `gather_results`.

        Raises
        ------
        RankError
            A rank failed.
        TimeoutError
            The time is up; the run goes on.
        KeyboardInterrupt
            The waiting was interrupted; the run goes on.

        Examples
        --------
        >>> job.wait(timeout=60)
        RankResults([0.0, 0.1])
        """
        try:
            if self._over.wait(timeout):
                self._wait_until_shown()
            else:
                raise TimeoutError(
                    f"{self.name} is still running after {timeout:g} s of waiting; it goes on"
                )
        except KeyboardInterrupt:
            text = f"waiting for {self.name} was interrupted; it goes on: job.stop() ends it"
            print(text)  # noqa: T201 - said in the cell that waited
            raise
        return self.results()

    def __await__(self) -> Generator[Any, None, RankResults]:
        return asyncio.to_thread(self._wait_quietly).__await__()

    def _wait_quietly(self) -> RankResults:
        self._wait_until_shown()
        return self.results()

    def results(self) -> RankResults:
        """Return what the ranks of a finished run returned.

        Raises
        ------
        RankError
            A rank failed.
        RuntimeError
            The run is not over; `wait` waits for it.

        Examples
        --------
        >>> job.results()
        RankResults([0.0, 0.1])
        """
        if not self.done:
            raise RuntimeError(f"{self.name} is still running: job.wait() waits for its results")
        if self._broken is not None:
            raise self._broken
        if self.error is not None:
            raise self.error.with_traceback(None)
        returned = {**self.nodes.values, **self._values}
        return RankResults(returned[rank] for rank in sorted(returned))

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every rank that is at work. One that catches it goes on.

        Examples
        --------
        >>> import time
        >>> job = launch(time.sleep, 60, num_processes=2)
        >>> job.interrupt()
        """
        self.loop.ask(self.loop.interrupt)

    def stop(self) -> None:
        """End the run: KeyboardInterrupt in every rank, SIGTERM after `grace`, then SIGKILL.

        Returns at once; `wait` tells when all are gone.

        Examples
        --------
        >>> import time
        >>> job = launch(time.sleep, 60, num_processes=2)
        >>> job.stop()
        >>> job.wait()
        Traceback (most recent call last):
        JobStoppedError: sleep was stopped before its ranks were done...
        """
        self.loop.ask(lambda: self.loop.stop("stop"))

    def kill(self) -> None:
        """End every rank and all that they started, without asking.

        Examples
        --------
        >>> import time
        >>> job = launch(time.sleep, 60, num_processes=2)
        >>> job.kill()
        """
        self.loop.ask(self.loop.kill)

    def stacks(self) -> str:
        """Return where each rank is, as text: the collective it waits in and its stack.

        Equal ranks stand together, the odd one out first. It works while the ranks are stuck.

        Examples
        --------
        >>> job.stacks()
        'no rank of train is at work'
        """
        return whereabouts.stacks(self)

    def logs(self, rank: int | None = None) -> str:
        """Return the whole text of one rank, or of all of them one after the other.

        Raises
        ------
        IndexError
            This node has no such rank.

        Examples
        --------
        >>> print(job.logs())
        --- rank 0
        lr=0.1
        --- rank 1
        lr=0.1
        """
        if rank is None:
            return "".join(f"--- rank {r.index}\n{r.output.whole()}" for r in self.ranks)
        for found in self.ranks:
            if found.index == rank:
                return found.output.whole()
        first, last = self.ranks[0].index, self.ranks[-1].index
        raise IndexError(f"rank {rank!r}: the ranks here are {first} to {last}")

    def timeline(self) -> Timeline:
        """Return what the ranks called together and when, for jobs with ``trace=True``.

        As the last line of a cell it shows a picture; its ``table()`` is a pandas frame.

        Examples
        --------
        >>> def mean():
        ...     PartialState()
        ...     return reduce(torch.ones(1)).item()
        >>> job = launch(mean, num_processes=2, trace=True)
        >>> results = job.wait()
        >>> print(job.timeline())
        collectives of rank 0: 1, rank 1: 1
        ...
        """
        from nbstate.view.timeline import Timeline

        return Timeline(self._spans)

    def export_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline in Chrome's trace format, which https://ui.perfetto.dev opens.

        Examples
        --------
        >>> job.export_trace("trace.json")
        """
        self.timeline().export(path)

    def __repr__(self) -> str:
        return f"<job {self.name}: {self.state}, {self.where}>"

    # -- what a view needs

    def listen(self, event: threading.Event) -> None:
        """Have `event` set whenever something that a view shows may have changed."""
        self._listeners.add(event)
        event.set()

    def over_within(self, seconds: float) -> bool:
        """Wait until the run is over, at most so long; tell whether it is."""
        return self._over.wait(seconds)

    def shown_by(self, view: Shown) -> None:
        """Have whoever waits for this job wait for `view` too, until it has shown everything."""
        self._views.append(weakref.ref(view))  # it lives until it has

    def unlisten(self, event: threading.Event) -> None:
        """No longer set `event`."""
        self._listeners.discard(event)

    # -- what the launcher does

    def start(self) -> None:
        """Start the ranks; returns once all of them exist.

        Raises
        ------
        OSError
            A process, pipe or file could not be made. What had been started is gone again.
        """
        _end_with_the_interpreter()
        _alive.add(self)
        # Not the thread that runs cells: see nbstate.start.fork.
        thread = threading.Thread(target=self._live, name=f"nbstate-job-{self.number}", daemon=True)
        with self._ended_by_an_interrupt():
            thread.start()
            self._ready.wait()
        if self._broken is not None:
            self._over.wait()
            raise self._broken

    def wait_or_stop(self) -> RankResults:
        """Wait as a blocking cell does: an interrupt ends the run, a second one at once."""
        with self._ended_by_an_interrupt():
            self._wait_until_shown()
        return self.results()

    @contextmanager
    def _ended_by_an_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.stop()
            while True:
                try:
                    self._wait_until_shown()
                except KeyboardInterrupt:
                    self.kill()
                else:
                    raise

    def _wait_until_shown(self) -> None:
        self._over.wait()
        for view in self._views:
            shown = view()
            if shown is not None:
                shown.join()

    def join(self) -> None:
        """Wait until every rank is gone, however it ended."""
        self._over.wait()

    def _live(self) -> None:
        try:
            self.loop.run()
            self.state, self.error = report.outcome(self)
            self._write_back()
        except BaseException as error:
            self._broken = error
            self.state = "failed"
        finally:
            self._end()

    def _end(self) -> None:
        if self.state == "done":
            self.notes += self._closing_notes
        del self.start_method  # the kernel may free what the run held on to
        self.handlers.clear()  # no circle of references: results go with the last name for them
        self._ended = time.monotonic()
        _alive.discard(self)
        self._over.set()
        self._ready.set()
        self.changed()

    def _write_back(self) -> None:
        if self.state == "done":
            for module, weights in zip(self.options.write_back, self._weights, strict=True):
                module.load_state_dict(weights)

    def give_up(self) -> None:
        """Close what a job that never started has opened."""
        self.loop.close()
        self.state = "stopped"
        self._end()

    # -- what the loop reports

    @property
    def mark(self) -> str:
        """What every program that a rank starts has in its environment, as ``NAME=value``."""
        return f"{MARK}={self.run_id}"

    @property
    def rendezvous(self) -> MeetingPoint:
        """Where the ranks meet."""
        return self.nodes.meeting_point

    def started(self) -> None:
        """Every rank exists."""
        self.state = "running"
        self._ready.set()
        self.changed()

    def may_restart(self) -> bool:
        """A rank has failed, and all are gone: tell of it and be ready for the next attempt.

        False where no rank failed by itself, so that there is nothing to try again.
        """
        _, error = report.outcome(self)
        if error is None or not error.is_real:
            return False
        self._restart(error)
        return True

    def restart_together(self) -> None:
        """All nodes begin again once they have met: tell why."""
        self._restart(report.outcome(self)[1])

    def _restart(self, error: RankError | None) -> None:
        self.restarts += 1
        told = f"restart {self.restarts}"
        if self.nodes.note or error is None:
            self.note(f"{told}: {self.nodes.note}")
        else:
            self.note(f"{told} of {self.options.max_restarts}: {str(error).splitlines()[0]}")
        self._values.clear()
        self._weights = []

    def take_places(self) -> None:
        """The next attempt begins: the ranks are as they were before the first one."""
        before = self.nodes.offset, self.world_size
        self.nodes.begin()
        self.world_size = self.nodes.world_size
        for local, rank in enumerate(self.ranks):
            rank.begin_again(self.nodes.offset + local)
        if (self.nodes.offset, self.world_size) != before:
            first, last = self.ranks[0].index, self.ranks[-1].index
            which = f"rank {first}" if first == last else f"ranks {first} to {last}"
            self.note(f"this node now has {which} of {self.world_size}")

    def ranks_ended(self) -> None:
        """Every rank here is gone."""
        if self.nodes.number is not None:
            self.nodes.ended(report.own_failures(self), self._values)

    def stopping(self) -> None:
        """The ranks have been asked to stop."""
        self.state = "stopping"
        self.changed()

    def changed(self) -> None:
        """Wake whoever shows this job."""
        for event in tuple(self._listeners):
            event.set()

    def heard(self, rank: Rank, message: object) -> None:
        """Hand a message that is not the job's own to whoever asked for its type."""
        handler = self.handlers.get(type(message))
        if handler is not None:
            handler(rank, message)

    def tell(self, rank: int, message: object) -> None:
        """Send one rank a message, from any thread."""
        self.loop.ask(lambda: self.loop.send(rank, message))

    def note_when_done(self, line: str) -> None:
        """Keep a line that the user should read if every rank has returned."""
        self._closing_notes.append(line)

    def note(self, line: str) -> None:
        """Keep a line that the user should read."""
        self.notes.append(line)
        self.changed()

    def take_result(self, line: Line) -> None:
        """Build the value that a rank returned, or note why it cannot be built."""
        try:
            value, weights = line.value(), line.weights()
        except Exception as error:
            line.failed = report.not_rebuilt(error)
            return
        self._values[line.rank.index] = value
        if line.rank is self.ranks[0]:
            self._weights = weights

    @property
    def values(self) -> Mapping[int, Any]:
        """What the ranks that are done returned."""
        return self._values


@functools.cache
def _end_with_the_interpreter() -> None:
    """Have an exit end the ranks; multiprocessing would wait for them, perhaps for ever.

    Exit handlers run in reverse order, so this one must be newer than multiprocessing's.
    """
    importlib.import_module("multiprocessing.util")
    atexit.register(_end_all)


def _end_all() -> None:
    for job in jobs():
        job.kill()
        job._over.wait()


def jobs() -> list[Job]:
    """Return the jobs whose ranks are alive, oldest first.

    Examples
    --------
    >>> import time
    >>> job = launch(time.sleep, 60, num_processes=2)
    >>> jobs() == [job]
    True
    >>> job.stop()
    """
    return sorted(_alive, key=lambda job: job.number)
