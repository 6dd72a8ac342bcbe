"""The ranks of a session from their start to their end, and what they are asked to do between.

They do one errand at a time. A rank that dies takes no other along; what is left of process groups
after a failure is made anew.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from nbstate import plan, values
from nbstate.job import logs
from nbstate.job.output import Cursor
from nbstate.rank import cells, failure, groups
from nbstate.rank.call import Call
from nbstate.rank.session import serve
from nbstate.results import RankResults
from nbstate.session.errand import Errand
from nbstate.session.job import SessionJob
from nbstate.session.release import cut_off
from nbstate.start import limits
from nbstate.start.choice import choose_start
from nbstate.view.session import Stage
from nbstate.wire import READY, End, TaskDone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbstate.job.ranks import Rank
    from nbstate.options import LaunchOptions
    from nbstate.session.errand import Calls

Cells = dict[str, tuple[str, list[str]]]
Said = Literal["shown", "dropped", "kept"]


class Team:
    """Ranks that serve until `end`.

    Parameters
    ----------
    world_size
        How many.
    options
        The session's.

    Raises
    ------
    RankError
        A rank did not even begin.
    """

    def __init__(self, world_size: int, options: LaunchOptions) -> None:
        start, why = choose_start(Call(serve, (), {}), options, world_size)
        where = plan.in_words(world_size, options)
        folder = logs.new_folder(options.log_dir)
        with limits.explained(world_size):
            self.job = SessionJob(
                "session", start, options, world_size, where=where, log_dir=folder
            )
        self.stage = Stage(self.job)
        self.seconds: dict[int, float] = {}
        self.idle_since = time.monotonic()
        self._busy = threading.Lock()
        self._numbers = itertools.count(READY + 1)
        self._read_to = {rank: Cursor() for rank in range(world_size)}
        self._cells: Cells = {}
        self._told_cells: dict[int, set[str]] = {rank: set() for rank in range(world_size)}
        self._cached_sources = -1
        # What kernel and ranks have in common is what the kernel has at this moment. The values are
        # kept, or another object might get the number of one that is gone.
        forked = start.surroundings is None
        self.by_reference = values.names_in_main() if forked else {}
        main = vars(sys.modules["__main__"])
        self._known = [main[name] for name in self.by_reference.values()]
        for line in why:
            self.stage.tell(line)
        self._begin()

    def _begin(self) -> None:
        self.job.handlers[TaskDone] = self._answered
        self.job.on_failure = self._lost
        # Each rank answers unasked, once it can hear.
        errand = Errand(self.job, READY, "start", self._read_to)
        self.job.begin(errand)
        with self.job.interruptible():
            self.job.start()
        try:
            self.stage.follow(errand, quiet=True)
            self._outcome(errand)
        except BaseException:
            self.job.kill()
            self.join()
            raise
        self.job.errand = None

    @property
    def errand(self) -> Errand | None:
        """What the ranks are doing now."""
        return self.job.errand

    def do(self, ranks: list[int], calls: Calls, name: str, *, said: Said = "shown") -> RankResults:
        """Have ranks do something, show it, and return what each returned.

        What they say is shown, dropped, or kept for the next cell that shows what they say.

        Raises
        ------
        CellError
            It failed on a rank.
        CellInterrupt
            It was interrupted.
        RuntimeError
            One of the ranks is gone, or all are busy.
        """
        self.seconds = {}
        self._check_alive(ranks)
        with self._exclusively(name):
            errand = self._errand_for(ranks, name)
            self.stage.move()
            try:
                with errand.release.by_the_stop_button():
                    errand.begin(calls, self.by_reference)
                    self.stage.follow(errand, quiet=said != "shown")
                    self._finish(errand, said)
            finally:
                self.job.errand = None
                self.idle_since = time.monotonic()
        return self._outcome(errand)

    def _finish(self, errand: Errand, said: Said) -> None:
        self.seconds = {p.index: p.seconds for p in errand.ranks if p.seconds is not None}
        if said != "kept":
            self._read_on(errand)
        self._mend(errand)

    def leave(self, why: str) -> None:
        """Have the ranks end, also in the middle of an errand; `join` waits for it."""
        for rank in self.job.ranks:
            if rank.alive:
                self.job.tell(rank.index, End())
        errand = self.errand
        if errand is not None:
            errand.called_off = why
            self.job.kill()

    def join(self) -> None:
        """Wait until the ranks are gone, and tell what was found then."""
        self.job.join()
        self.job.on_failure = None
        while self.job.notes:
            self.stage.tell(self.job.notes.pop(0))
        self.stage.close()

    def _answered(self, rank: Rank, message: TaskDone) -> None:
        line = self.job.loop.lines[rank.index]
        while line.read_text("stdout") or line.read_text("stderr"):
            pass  # what it said before it answered belongs to the errand
        errand = self.errand
        if errand is not None and errand.number == message.number:
            errand.answered(line, message)
            if message.failed is None:
                self.job.finished(rank.index)

    def _lost(self, rank: Rank) -> None:
        if self.errand is not None:
            self.errand.lost(self.job.loop.lines[rank.index])

    # -- errands

    @contextmanager
    def _exclusively(self, name: str) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            doing = self.errand.name if self.errand is not None else "something else"
            raise RuntimeError(
                f"{name}: the ranks are still busy with {doing}; session.interrupt() interrupts it"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _errand_for(self, ranks: list[int], name: str) -> Errand:
        starts = {rank: self._read_to[rank] for rank in ranks}
        errand = Errand(self.job, next(self._numbers), name, starts)
        self.job.begin(errand)
        return errand

    def _read_on(self, errand: Errand) -> None:
        for rank in errand.parts:
            output = self.job.ranks[rank].output
            self._read_to[rank] = output.read(self._read_to[rank]).cursor

    def _check_alive(self, ranks: Sequence[int]) -> None:
        gone = [rank for rank in ranks if not self.job.ranks[rank].alive]
        if gone:
            from nbstate.errors import end_in_words

            told = "; ".join(f"rank {r}: {end_in_words(self.job.ranks[r].exitcode)}" for r in gone)
            left = ",".join(str(rank.index) for rank in self.job.ranks if rank.alive)
            other = f"; %%ranks {left} runs on those that are left" if left else ""
            raise RuntimeError(f"{told}. session.refork() starts fresh ranks{other}")

    def new_cells(self, ranks: list[int]) -> Cells:
        """Return the cells that some of these ranks do not know of, for their tracebacks."""
        if len(linecache.cache) != self._cached_sources:
            self._cached_sources = len(linecache.cache)
            self._cells = failure.cells_of_notebook()
        known = set.intersection(*(self._told_cells[rank] for rank in ranks))
        return {name: cell for name, cell in self._cells.items() if name not in known}

    def know_cells(self, ranks: list[int], new: Cells) -> None:
        """Note that these ranks have heard of cells."""
        for rank in ranks:
            self._told_cells[rank] |= new.keys()

    def complete(self, line: str, at: int) -> list[str]:
        """Return how the name before position `at` of a line may go on, of the first rank's names.

        Nothing where the ranks are busy.
        """
        alive = [rank.index for rank in self.job.ranks if rank.alive]
        if not alive or not self._busy.acquire(blocking=False):
            return []
        try:
            errand = self._errand_for(alive[:1], "completion")
            errand.begin((cells.complete, (line, at), {}), {})
            return errand.parts[alive[0]].value or [] if errand.wait(2.0) else []
        finally:
            self.job.errand = None
            self._busy.release()

    def _outcome(self, errand: Errand) -> RankResults:
        failures = errand.failures
        results = {part.index: part.value for part in errand.ranks if part.failure is None}
        if not failures:
            return RankResults(part.value for part in errand.ranks)
        from nbstate.errors import CellError, CellInterrupt

        if errand.interrupted and all(failure.secondary for failure in failures.values()):
            raise CellInterrupt(failures)
        others = dict.fromkeys(results, "done; its value is in error.results")
        raise CellError(errand.name, self.job.world_size, failures, results, others)

    # -- groups

    def _mend(self, errand: Errand) -> None:
        """After a failure: have ranks that are out of step make their process groups anew."""
        failures = errand.failures.values()
        alive = [rank.index for rank in self.job.ranks if rank.alive]
        if not (failures or errand.cut) or len(alive) < self.job.world_size:
            return
        # One that a comparison has refused has not begun.
        begun = [f for f in failures if f.collective and f.type_name != cells.REFUSED]
        out_of_step = bool(errand.cut or begun)
        if out_of_step or not self._in_step(alive):
            old = self.job.rendezvous.port
            self.job.loop.ask(lambda: cut_off(self.job, alive, old))
            whole = all(self._quietly(alive, (groups.is_there, (), {})))
            self._quietly(alive, (groups.renew, (self._new_store(),), {"join": whole}))
            if whole:
                self.stage.tell(
                    "the ranks' process group was made anew, with new connections; make what holds "
                    "the old one anew too (DistributedDataParallel, device meshes)"
                )

    def _new_store(self) -> int:
        """Have a store in which no group has left anything, also none that was never whole."""
        self.job.nodes.begin()
        self.job.rendezvous.open_store(self.job.world_size)
        return self.job.rendezvous.port

    def _in_step(self, ranks: list[int]) -> bool:
        counts: dict[str, set[int]] = {}
        for progress in self._quietly(ranks, (groups.progress, (), {})):
            for group, count in (progress or {}).items():
                counts.setdefault(group, set()).add(count)
        return all(len(different) == 1 for different in counts.values())

    def _quietly(self, ranks: list[int], call: Any) -> list[Any]:
        errand = self._errand_for(ranks, "start")
        errand.begin(call, self.by_reference)
        self.stage.follow(errand, quiet=True)
        return [part.value for part in errand.ranks]
