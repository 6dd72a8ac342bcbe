"""Ranks that stay between cells and keep their variables."""

from __future__ import annotations

import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nbstate import plan, travel
from nbstate.mistakes import told_at_the_call
from nbstate.options import LaunchOptions
from nbstate.rank import bootstrap, cells
from nbstate.session.dropped import end_when_dropped
from nbstate.session.selection import select
from nbstate.session.team import Team
from nbstate.session.variables import Variables
from nbstate.start import xla
from nbstate.values import UnpicklableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from nbstate.errors import CellError
    from nbstate.job import Job
    from nbstate.job.ranks import Rank
    from nbstate.results import RankResults
    from nbstate.session.errand import Calls, Errand
    from nbstate.session.selection import Selection
    from nbstate.session.team import Said
    from nbstate.view.timeline import Timeline

_NOT_FOR_SESSIONS = (
    *("wait", "isolate", "write_back", "max_restarts", "timeout", "cluster"),
    *("num_nodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "rdzv_id"),
    "gather_results",
)

_open: list[weakref.ref[Session]] = []


class Session(Variables):
    """Ranks forked from the kernel as it is now, that stay alive between cells.

    They begin with every variable that the kernel has and keep what cells give them. In cells the
    names `rank` and `world_size` tell which rank it is, unless the notebook uses them otherwise.

    Parameters
    ----------
    num_processes
        How many ranks. None: one per accelerator, or one.
    **options
        Fields of `LaunchOptions`, but for those of a run that ends (``wait``, ``isolate``,
        ``write_back``, ``max_restarts``, ``timeout``) and of several machines.

    Attributes
    ----------
    ranks : tuple of Rank
        One handle per rank, with its ``pid`` and more.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; no process was started.

    Notes
    -----
    As a context manager it closes at the end. It also ends when nothing refers to it any more: a
    name such as `session` keeps it, for ``%%ranks`` too. A function given to `run` travels by
    value, and its globals are the rank's. Selections of ranks are as in ``%%ranks``: see `select`.

    Collectives need the ranks' process group, which ``PartialState()`` in a cell on the ranks
    makes. A cell whose ranks wait for each other in vain says after `stall_after` seconds who waits
    where; with ``trace=True`` it fails as soon as a rank that others wait for has finished it.

    Examples
    --------
    >>> session = Session(2)
    >>> session.push(lr=0.1)
    >>> session.run(lambda: rank * lr)
    RankResults([0.0, 0.1])
    """

    def __init__(self, num_processes: int | None = None, **options: Any) -> None:
        with told_at_the_call():
            unfit = [name for name in _NOT_FOR_SESSIONS if name in options]
            if unfit:
                raise TypeError(f"{unfit[0]}={options[unfit[0]]!r}: a session has no such option")
            self.options = LaunchOptions.from_keywords(options)
            plan.check_not_in_a_rank()
            self.world_size = plan.count_ranks(num_processes, self.options)
            plan.check_devices(self.world_size, self.options)
        self._closed = False
        self._gather_team()
        _open.append(weakref.ref(self))

    def _gather_team(self) -> None:
        self._team = Team(self.world_size, self.options)
        self._unless_dropped = end_when_dropped(self, self._team)

    # -- what the user does

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """One handle per rank."""
        return self.job.ranks

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def run(
        self, function: Callable[..., Any], *args: Any, ranks: Selection = "all", **kwargs: Any
    ) -> RankResults:
        """Call a function on the ranks and return what each returned.

        Parameters
        ----------
        function
            A function or class. One from a cell travels by value; its globals are the rank's.
        *args, **kwargs
            Its arguments.
        ranks
            Which ranks.

        Raises
        ------
        CellError
            It failed on a rank; a `RankError`. The ranks stay.
        KeyboardInterrupt
            The cell was interrupted. The ranks stay.

        Examples
        --------
        >>> session.run(lambda power: lr**power, 2, ranks=[1])
        RankResults([0.01...])
        """
        with told_at_the_call():
            if not callable(function):
                raise TypeError(f"function={function!r}: expected a function: train, not train()")
            chosen = select(ranks, self.world_size)
        name = getattr(function, "__name__", type(function).__name__)
        given = {name: function, "args": args, "kwargs": kwargs}
        new = self._team.new_cells(chosen)
        call: Calls = (cells.call, (new, function, args, kwargs), {})
        results = self._do(chosen, call, name, given=given)
        self._team.know_cells(chosen, new)  # after a failure they are told once more
        return results

    def cell(
        self,
        source: str,
        ranks: Selection = "all",
        *,
        collect: bool = True,
        count: int = 0,
        quiet: bool = False,
    ) -> RankResults:
        """Run the source of a cell on the ranks, as a cell of a notebook runs.

        Parameters
        ----------
        source
            Code, IPython's magics included.
        ranks
            Which ranks.
        collect
            Return the value of the last expression per rank.
        count
            The number of the cell, for tracebacks.
        quiet
            Show nothing of what the ranks print and display.

        Raises
        ------
        CellError
            It failed on a rank; a `RankError`. The ranks stay.
        KeyboardInterrupt
            The cell was interrupted. The ranks stay.

        Examples
        --------
        >>> session.cell("momentum = 0.9 + rank / 100; momentum")
        RankResults([0.9, 0.91])
        """
        self._team.job.cells[source] = count
        call = (cells.run, (source, count), {"collect": collect})
        return self._do(ranks, call, "cell", said="dropped" if quiet else "shown")

    def timeline(self) -> Timeline:
        """Return what the ranks called together and when, where it was traced.

        That is inside `nbstate.trace`, or always with ``trace=True``.

        Examples
        --------
        >>> with Session(2, trace=True) as traced:
        ...     results = traced.cell("reduce(torch.ones(1))")
        ...     print(traced.timeline())
        each rank: 1 collective...
        ...
        """
        return self.job.timeline()

    def refork(self) -> None:
        """Replace the ranks by fresh ones, forked from the kernel as it is now.

        Examples
        --------
        >>> lr = 0.5  # in the kernel
        >>> session.refork()
        >>> session["lr"]
        RankResults([0.5, 0.5])
        """
        self._check_open()
        old = self._team
        self._dismiss("its session was given fresh ranks")
        if self.options.use_port is not None or xla.needed(self.options):
            old.join()  # only one team at a time can have the port, or the TPU
        try:
            self._gather_team()  # while the old ranks leave
        finally:
            old.join()  # what they held, memory of devices above all, is free when this returns

    def _dismiss(self, why: str) -> None:
        self._unless_dropped.detach()
        self._team.leave(why)

    def interrupt(self) -> None:
        """Interrupt what the ranks are doing; they stay.

        Examples
        --------
        >>> session.interrupt()  # from another thread, or a button, while a cell runs
        """
        if self.doing is not None:
            self.doing.release.interrupt()

    def close(self) -> None:
        """End the ranks; returns when they are gone.

        Examples
        --------
        >>> session.close()
        >>> session.closed
        True
        """
        if not self.closed:
            self._closed = True
            _open.remove(weakref.ref(self))
            self._dismiss("its session was closed")
            self._team.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<session: closed, {self.job.where}>"
        gone = [str(rank.index) for rank in self.ranks if not rank.alive]
        lost = f", rank {', '.join(gone)} gone" if gone else ""
        doing = self.doing.name if self.doing is not None else "idle"
        return f"<session: {doing}, {self.job.where}{lost}>"

    # -- what magics and views need

    @property
    def job(self) -> Job:
        """The ranks as a job."""
        return self._team.job

    @property
    def doing(self) -> Errand | None:
        """What its ranks are doing now."""
        return self._team.errand

    @property
    def seconds(self) -> dict[int, float]:
        """How long each rank took for what was last asked; a rank that is gone has no time."""
        return self._team.seconds

    def tell(self, line: str) -> None:
        """Say something in the cell that runs now."""
        self._team.stage.tell(line)

    def describe(self, expression: str) -> list[str]:
        """Return the value of an expression on each rank, in a line; of a tensor its kind.

        Where it fails on some ranks only, theirs is a line about that.
        """
        from nbstate.errors import CellError

        call: Calls = (cells.described, (expression,), {})
        try:
            return list(self._do("all", call, expression, said="kept"))
        except CellError as error:
            if not error.results:
                raise
            return [error.results.get(r) or _in_a_line(error, r) for r in range(self.world_size)]

    def complete(self, line: str, at: int) -> list[str]:
        """Return how the name before position `at` of a line may go on, by a rank's names."""
        return [] if self.closed else self._team.complete(line, at)

    def _do(
        self,
        chosen: Selection,
        calls: Calls,
        name: str,
        *,
        said: Said = "shown",
        given: Mapping[str, object] = MappingProxyType({}),
    ) -> RankResults:
        """Have ranks do something; `given` are the user's values in it, by their names."""
        with told_at_the_call():
            self._check_open()
            ranks = select(chosen, self.world_size)
        try:
            return self._team.do(ranks, calls, name, said=said)
        except UnpicklableError as error:
            found = error
        with told_at_the_call():
            for what, value in given.items():
                travel.dump(value, what, self._team.by_reference)  # tells the path from there
            raise found

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("this session is closed: make a new one with Session(...)")


def _in_a_line(error: CellError, rank: int) -> str:
    failure: Any = error.failures[rank]
    return "not defined" if failure.type_name == "NameError" else failure.headline


def current() -> Session:
    """Return the session that was opened last and is not closed.

    Raises
    ------
    RuntimeError
        There is none, or this process is a rank, which has copies of the kernel's.
    """
    here = bootstrap.current
    if here is not None:
        which = f"rank {here.rank} of {here.world_size}"
        raise RuntimeError(f"this is {which}: only its kernel has sessions")
    alive = [session for known in _open if (session := known()) is not None]
    if not alive:
        lost = " (the last one ended when nothing referred to it any more)" if _open else ""
        raise RuntimeError(f"no session is open{lost}: session = nbstate.Session(2) opens one")
    return alive[-1]
