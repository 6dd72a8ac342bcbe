"""One run from its start to its end, as the launcher, the loop and the views see it."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, Protocol

from nbstate.job import logs, report
from nbstate.job.loop import Loop
from nbstate.job.ranks import Line, Rank
from nbstate.metrics import Metrics
from nbstate.start.nodes import OneNode
from nbstate.start.place import MARK, threads_per_rank
from nbstate.wire import Logged, Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nbstate.errors import RankError
    from nbstate.options import LaunchOptions
    from nbstate.start import Start
    from nbstate.start.nodes import MeetingPoint, Nodes
    from nbstate.wire import Span

JobState = Literal["starting", "running", "stopping", "done", "failed", "stopped"]


class Shown(Protocol):
    """What a run knows of a view."""

    def join(self) -> object:
        """Wait until everything is shown."""


_numbers = itertools.count(1)


class Run:
    """A function on N ranks: what is known of it, and who is told. `Job` is the user's handle."""

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
        self.threads_per_rank = threads_per_rank(local_ranks, options)
        self.loop = Loop(self)
        self._values: dict[int, Any] = {}
        self._weights: list[Mapping[str, Any]] = []
        self.broken: BaseException | None = None  # why the run itself has failed, and no rank
        self.page: Any = None  # what its view leaves of it
        self.handlers: dict[type, Callable[[Rank, Any], None]] = {}
        self.on_failure: Callable[[Rank], None] | None = None
        self.metrics = Metrics()
        self.handlers[Logged] = self.metrics.take
        self._spans: dict[int, list[Span]] = {rank.index: [] for rank in self.ranks}
        self.handlers[Traced] = lambda rank, told: self._spans[rank.index].extend(told.spans)
        self._closing_notes: list[str] = []
        self._views: list[weakref.ref[Shown]] = []
        self.view_to_come: Shown | None = None
        self._listeners: set[threading.Event] = set()
        self._ready = threading.Event()
        self._over = threading.Event()
        self._began = time.monotonic()
        self._ended: float | None = None

    @property
    def done(self) -> bool:
        """Whether every rank is gone, however it ended."""
        return self._over.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since the start; of a finished run, how long it took."""
        return (self._ended or time.monotonic()) - self._began

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

    # -- its life

    def join(self) -> None:
        """Wait until every rank is gone, however it ended."""
        self._over.wait()

    def _live(self) -> None:
        try:
            self.loop.run()
            self.state, self.error = report.outcome(self)
            self._write_back()
        except BaseException as error:
            self.broken = error
            self.state = "failed"
        finally:
            self._end()

    def _end(self) -> None:
        if self.state == "done":
            self.notes += self._closing_notes
        del self.start_method  # the kernel may free what the run held on to
        self.handlers.clear()  # no circle of references: results go with the last name for them
        self._ended = time.monotonic()
        logs.over(self.log_dir)
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
        # Calls are counted anew, and belong to none of those before.
        self._spans = {rank.index: [] for rank in self.ranks}
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
