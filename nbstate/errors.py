"""What a user reads when a rank fails.

- `RankError`: a rank failed; which, where and why, and the others in a line each. It is also
  torch's `ChildFailedError`.
    - `RankTimeoutError`: the run took longer than `timeout`; also a `TimeoutError`.
    - `JobStoppedError`: the run was stopped before its ranks were done.
    - `CellError`: some ranks of a session failed in a cell; the session goes on.
- `CellInterrupt`: a cell of a session was interrupted; a `KeyboardInterrupt`.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any, TypeVar

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

E = TypeVar("E", bound=BaseException)

_TOLD_ELSEWHERE = (
    *("rank", "node", "pid", "exitcode", "error_file", "message", "when", "type_name"),
    *("traceback", "where", "collective", "secondary"),
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class RankFailure(ProcessFailure):
    """How one rank failed.

    Attributes
    ----------
    rank
        Its global rank.
    type_name, message
        The exception's, or ``""`` and what ended the process.
    traceback
        Its own traceback with the notebook's lines, or the last Python stack of a crash; text.
    where
        The innermost line that is the user's own.
    collective
        The collective it waited in, such as ``all_reduce``, or ``""``.
    secondary
        It failed because another rank did: it lost its peer, or was stopped.
    exception
        The original exception where it could travel, else None.
    node
        Which of several nodes it was on; None where there is only one.

    Examples
    --------
    >>> try:
    ...     debug_launcher(lambda: {}["train"])
    ... except RankError as error:
    ...     failure = error.failures[0]
    >>> failure.type_name, failure.message
    ('KeyError', "'train'")
    """

    def __init__(
        self,
        *,
        rank: int,
        pid: int,
        exitcode: int,
        error_file: str,
        message: str,
        when: int,
        type_name: str = "",
        traceback: str = "",
        where: str = "",
        collective: str = "",
        secondary: bool = False,
        exception: BaseException | None = None,
        node: int | None = None,
    ) -> None:
        super().__init__(rank, pid, exitcode, error_file)
        self.rank = rank
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
        self.where = where
        self.collective = collective
        self.secondary = secondary
        self.exception = exception
        self.when = when
        self.node = node

    @property
    def who(self) -> str:
        """What to call the rank in a sentence."""
        return f"rank {self.rank}" if self.node is None else f"node {self.node}, rank {self.rank}"

    @property
    def headline(self) -> str:
        """The failure in one line, without the rank."""
        first = self.message.split("\n", 1)[0]
        if not self.type_name:
            return first
        return f"{self.type_name}: {first}" if first else self.type_name

    def __repr__(self) -> str:
        return f"RankFailure(rank={self.rank}, {self.headline!r})"

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments that make it again elsewhere; its exception stays here."""
        return {name: getattr(self, name) for name in _TOLD_ELSEWHERE}


class RankError(ChildFailedError):
    """A run failed. Its text names the rank, then shows that rank's own traceback.

    Attributes
    ----------
    rank
        The rank that failed first.
    failures : dict of int to RankFailure
        Every failed rank; real failures first, in order of time.
    results : dict of int to object
        What the ranks that had finished returned.
    restarts
        How often the ranks had been started anew before; the failures are those of the last time.

    Notes
    -----
    `__cause__` is the original exception where it can travel. It is also torch's
    `ChildFailedError`, for code that catches that.

    Examples
    --------
    >>> def count(column):
    ...     return len({"train": [1, 2]}[column])
    >>> try:
    ...     debug_launcher(count, ("valid",))
    ... except RankError as error:
    ...     print(f"rank {error.rank} of {error.world_size}: {error.original(KeyError)}")
    rank ... of 2: 'valid'
    """

    def __init__(
        self,
        name: str,
        world_size: int,
        failures: Mapping[int, RankFailure],
        results: Mapping[int, Any],
        others: Mapping[int, str],
        restarts: int = 0,
    ) -> None:
        self.name = name
        self.restarts = restarts
        self.world_size = world_size
        self.results = dict(results)
        self._others = dict(others)
        super().__init__(name, dict(failures))
        self.rank = next(iter(failures))
        self.__cause__ = failures[self.rank].exception

    def original(self, kind: type[E]) -> E | None:
        """Return the exception of a failed rank that is of type `kind`, or None.

        Examples
        --------
        >>> try:
        ...     debug_launcher(lambda: {}["train"])
        ... except RankError as error:
        ...     print(error.original(KeyError), error.original(ValueError))
        'train' None
        """
        for failure in self.failures.values():
            if isinstance(failure, RankFailure) and isinstance(failure.exception, kind):
                return failure.exception
        return None

    @property
    def is_real(self) -> bool:
        """Whether a rank failed by itself, and was not only stopped or left by its peers."""
        return any(isinstance(f, RankFailure) and not f.secondary for f in self.failures.values())

    def format_msg(self, *_: str, **__: str) -> str:
        """Return the whole text: headline, traceback, one line for each other rank."""
        first, *rest = (f for f in self.failures.values() if isinstance(f, RankFailure))
        lines = [self.title(first)]
        extra = first.message.split("\n", 1)[1:] if not first.traceback else []
        lines += [line for text in extra for line in text.splitlines()]
        if first.traceback:
            lines += ["", *first.traceback.rstrip().splitlines()]
        told = {f.rank: f"{f.who}: {_in_one_line(f, first.rank)}" for f in rest}
        told |= {rank: f"rank {rank}: {text}" for rank, text in self._others.items()}
        if told:
            lines += ["", *(told[rank] for rank in sorted(told))]
        if self.restarts:
            times = "1 restart" if self.restarts == 1 else f"{self.restarts} restarts"
            lines += ["", f"It failed again after {times}; this is the last failure."]
        return "\n".join(lines)

    def title(self, first: RankFailure) -> str:
        """Return the first line of the text."""
        of = f" of {self.world_size}" if first.node is None else ""
        return f"{first.who}{of}: {first.headline}"

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in the cell: our text, without the launcher's own frames."""
        return str(self).splitlines()


class _Ended(RankError):
    """The run was ended from here: no rank is to blame, and each is told of in one line."""

    def format_msg(self, *_: str, **__: str) -> str:
        """Return the whole text: what ended the run, and where each rank was."""
        failures = [f for f in self.failures.values() if isinstance(f, RankFailure)]
        told = {f.rank: f"{f.who}: {_when_interrupted(f)}" for f in failures}
        told |= {rank: f"rank {rank}: {text}" for rank, text in self._others.items()}
        return "\n".join([self.title(failures[0]), "", *(told[rank] for rank in sorted(told))])


class RankTimeoutError(_Ended, TimeoutError):
    """The run took longer than its `timeout`; the text names who was late and where.

    Examples
    --------
    >>> import time
    >>> try:
    ...     notebook_launcher(time.sleep, (60,), num_processes=2, timeout=0.5)
    ... except TimeoutError as error:
    ...     print(error)
    sleep took longer than timeout=0.5 s; ranks 0, 1 not done
    ...
    """

    def __init__(self, seconds: float, *args: Any) -> None:
        self.seconds = seconds
        super().__init__(*args)

    def title(self, first: RankFailure) -> str:
        """Return the first line of the text."""
        late = [f.rank for f in self.failures.values() if isinstance(f, RankFailure)]
        word = "rank" if len(late) == 1 else "ranks"
        who = ", ".join(map(str, sorted(late)))
        return f"{self.name} took longer than timeout={self.seconds:g} s; {word} {who} not done"


class JobStoppedError(_Ended):
    """The run was stopped before all of its ranks were done; `by` names another node that did.

    Examples
    --------
    >>> import time
    >>> job = launch(time.sleep, 60, num_processes=2)
    >>> job.stop()
    >>> try:
    ...     job.wait()
    ... except JobStoppedError as error:
    ...     print(error)
    sleep was stopped before its ranks were done
    ...
    """

    def __init__(self, by: str, *args: Any) -> None:
        self.by = by
        super().__init__(*args)

    def title(self, first: RankFailure) -> str:
        """Return the first line of the text."""
        by = f" by {self.by}" if self.by else ""
        return f"{self.name} was stopped{by} before its ranks were done"


class CellError(RankError):
    """Some ranks of a session failed in a cell; the session goes on.

    Equal failures stand together, with the traceback of the first and the line of each that failed
    elsewhere. `results` has what the others' cells gave.
    """

    def format_msg(self, *_: str, **__: str) -> str:
        """Return the whole text: each different failure, then a line for each other rank."""
        return _ESCAPE.sub("", self._told())

    def _told(self) -> str:
        groups: dict[tuple[str, str], list[RankFailure]] = {}
        rest: dict[int, str] = dict(self._others)
        for failure in self.failures.values():
            assert isinstance(failure, RankFailure)
            if failure.secondary and self.is_real:
                rest[failure.rank] = _in_one_line(failure, next(iter(self.failures)))
            else:
                key = failure.headline, "" if failure.type_name else failure.traceback
                groups.setdefault(key, []).append(failure)
        parts = [self._group(alike) for alike in groups.values()]
        parts.append("\n".join(f"rank {rank}: {text}" for rank, text in sorted(rest.items())))
        return "\n\n".join(filter(None, parts))

    def _group(self, alike: list[RankFailure]) -> str:
        from nbstate.view.fold import ranges

        word = "rank" if len(alike) == 1 else "ranks"
        title = (
            f"{word} {ranges([f.rank for f in alike])} of {self.world_size}: {alike[0].headline}"
        )
        rest = "" if alike[0].type_name else alike[0].message.partition("\n")[2]
        elsewhere = [f for f in alike if f.traceback != alike[0].traceback]
        lines = "\n".join(f"rank {f.rank}: the same at {f.where}" for f in elsewhere)
        more = filter(None, (rest, alike[0].traceback.rstrip(), lines))
        return "\n\n".join((title, *more))

    def _render_traceback_(self) -> list[str]:
        return self._told().splitlines()


class CellInterrupt(KeyboardInterrupt):
    """A cell of a session was interrupted; where each rank was then, and whose state is lost."""

    def __init__(self, failures: Mapping[int, RankFailure]) -> None:
        self.failures = dict(failures)
        lost = [rank for rank, failure in failures.items() if not failure.type_name]
        told = [f"rank {rank}: {_when_interrupted(f)}" for rank, f in sorted(failures.items())]
        kept = "the ranks keep their variables"
        if lost:
            kept = f"the state of rank {', '.join(map(str, lost))} is lost: session.refork() heals"
        super().__init__("\n".join([f"interrupted; {kept}", *told]))

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".splitlines()


def _when_interrupted(failure: RankFailure) -> str:
    where = f" ({failure.where})" if failure.where else ""
    if not failure.type_name:
        return _ended_from_outside(failure)
    if failure.collective:
        return f"was in {failure.collective}{where}"
    return f"was at {failure.where}" if failure.where else "was stopped"


def _ended_from_outside(failure: RankFailure) -> str:
    inside = f" in {failure.collective}" if failure.collective else ""
    where = f" ({failure.where})" if failure.where else ""
    return f"{failure.headline}{inside}{where}"


def _in_one_line(failure: RankFailure, first: int) -> str:
    where = f" ({failure.where})" if failure.where else ""
    if failure.secondary and not failure.type_name:
        return _ended_from_outside(failure)
    if failure.secondary and failure.collective:
        return f"lost its peer in {failure.collective}{where}"
    if failure.secondary and failure.type_name not in _OF_A_STOP:
        return f"lost its peer{where}: {failure.headline}"
    if failure.secondary:
        return f"stopped because of rank {first}{where}"
    return f"{failure.headline}{where}"


# What ends a function that is interrupted, at a debugger's prompt too.
_OF_A_STOP = ("KeyboardInterrupt", "bdb.BdbQuit")


def end_in_words(exitcode: int | None) -> str:
    """Say how a process ended: by an exit code or by a signal's name."""
    if exitcode is None:
        return "ended, and its exit code is not known"
    if exitcode >= 0:
        return f"exit code {exitcode}" if exitcode else "ended without a result (exit code 0)"
    try:
        return f"killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"killed by signal {-exitcode}"
