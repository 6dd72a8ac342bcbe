"""What a rank can do among its peers: common to PartialState and AcceleratorState."""

from __future__ import annotations

import builtins
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist

from nbstate.state import process_group
from nbstate.state.attributes import ProcessAttributes
from nbstate.state.rank_only import Outcome, run_only
from nbstate.state.splitting import Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from nbstate.state.facts import ProcessFacts

Whose = Literal["main", "local_main", "last", "process", "local_process"]


class ProcessControl(ProcessAttributes):
    """What lets a process wait for its peers, and act alone or in turn."""

    @classmethod
    def _here(cls) -> ProcessFacts:
        """The facts of this process without making a state: as far as the environment tells."""
        raise NotImplementedError

    @classmethod
    def _joined(cls) -> ProcessFacts:
        """The facts of this process, made by a PartialState where there was none."""
        raise NotImplementedError

    # -- waiting ---------------------------------------------------------------------------------

    def wait_for_everyone(self, timeout: float | timedelta | None = None) -> None:
        """Return once every process has called this; nothing to do for one process.

        A wait, not a collective: it goes through the process group's store, so an hour of work on
        one rank ends nobody while real collectives keep their timeout. After a while it tells on
        stderr who is missing.

        Parameters
        ----------
        timeout : float or timedelta, optional
            Seconds to wait at most; without it there is no limit.

        Raises
        ------
        TimeoutError
            The time is up; the ranks that did not come are named.

        Examples
        --------
        >>> def prepare():
        ...     state = PartialState()
        ...     if state.is_main_process:
        ...         torch.save(torch.ones(2), "prepared.pt")
        ...     state.wait_for_everyone()
        ...     return torch.load("prepared.pt").tolist()
        >>> debug_launcher(prepare)
        RankResults([[1.0, 1.0], [1.0, 1.0]])
        """
        self._process.wait_for_everyone(timeout)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process run the block before the others do.

        An exception there releases the others with a RuntimeError that quotes it.

        Examples
        --------
        >>> def load():
        ...     return ["a", "b"]
        >>> with state.main_process_first():
        ...     data = load()  # downloads on the main process, finds it cached on the others
        """
        with self._process.first("main"):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let each machine's main process run the block before the others of that machine do.

        Examples
        --------
        >>> with state.local_main_process_first():
        ...     data = ["a", "b"]  # downloads once on each machine
        """
        with self._process.first("local_main"):
            yield

    # -- one rank only ---------------------------------------------------------------------------

    @classmethod
    def on_main_process(
        cls, function: Callable[..., Any] | None = None, *, share: bool = False
    ) -> Any:
        """Decorate a function so that only the main process runs it; elsewhere it returns None.

        The rank is looked up when the function is called, so decorating works before any state
        exists, in the kernel as well, and on methods and async functions.

        Parameters
        ----------
        function : callable, optional
            Left out, this returns the decorator.
        share : bool
            Every rank waits for the main process and returns its value; its exception is raised
            on every rank.

        Examples
        --------
        >>> @PartialState.on_main_process(share=True)
        ... def vocabulary():
        ...     return ["a", "b"]  # read once; the same result on every rank
        >>> debug_launcher(vocabulary)
        RankResults([['a', 'b'], ['a', 'b']])
        """
        return cls._only("main", function, share)

    @classmethod
    def on_local_main_process(
        cls, function: Callable[..., Any] | None = None, *, share: bool = False
    ) -> Any:
        """Decorate a function so that only each machine's main process runs it.

        As `on_main_process`; with `share`, the ranks of a machine return its main process's value.

        Examples
        --------
        >>> @PartialState.on_local_main_process
        ... def unpack():
        ...     return "unpacked"
        >>> debug_launcher(unpack)
        RankResults(['unpacked', None])
        """
        return cls._only("local_main", function, share)

    @classmethod
    def on_last_process(
        cls, function: Callable[..., Any] | None = None, *, share: bool = False
    ) -> Any:
        """Decorate a function so that only the process of the highest rank runs it.

        As `on_main_process`.

        Examples
        --------
        >>> @PartialState.on_last_process
        ... def report():
        ...     return "the last rank says this"
        >>> debug_launcher(report)
        RankResults([None, 'the last rank says this'])
        """
        return cls._only("last", function, share)

    @classmethod
    def on_process(
        cls,
        function: Callable[..., Any] | None = None,
        process_index: int | None = None,
        *,
        share: bool = False,
    ) -> Any:
        """Decorate a function so that only the process of this rank runs it.

        As `on_main_process`. A single process runs it whatever the index.

        Examples
        --------
        >>> @PartialState.on_process(process_index=1)
        ... def report():
        ...     return "rank 1 says this"
        >>> debug_launcher(report)
        RankResults([None, 'rank 1 says this'])
        """
        return cls._only("process", function, share, _checked(process_index, "process_index"))

    @classmethod
    def on_local_process(
        cls,
        function: Callable[..., Any] | None = None,
        local_process_index: int | None = None,
        *,
        share: bool = False,
    ) -> Any:
        """Decorate a function so that only the process of this local rank runs it, on each machine.

        As `on_main_process`. A single process runs it whatever the index.

        Examples
        --------
        >>> @PartialState.on_local_process(local_process_index=1)
        ... def report():
        ...     return "rank 1 of each machine says this"
        >>> debug_launcher(report)
        RankResults([None, 'rank 1 of each machine says this'])
        """
        index = _checked(local_process_index, "local_process_index")
        return cls._only("local_process", function, share, index)

    @classmethod
    def _only(
        cls, whose: Whose, function: Callable[..., Any] | None, share: bool, index: int = 0
    ) -> Any:
        def chosen() -> bool:
            here = cls._joined() if share else cls._here()
            return here.speaker(whose, index) == here.place.rank

        def shared(outcome: Outcome | None) -> Any:
            return cls._joined().share(outcome, whose, index)

        return run_only(function, chosen, shared if share else None)

    # -- splitting -------------------------------------------------------------------------------

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give this rank's part of the inputs to a block.

        Parts are contiguous, the first ``n % num_processes`` ranks get one item more, and joined in
        rank order they are the input. With fewer items than ranks some parts are empty. An iterator
        is dealt out item by item instead: rank, rank + world, and so on.

        Parameters
        ----------
        inputs : list, tuple, str, range, dict, Tensor, ndarray, DataFrame, Dataset, iterator, ...
            Anything with a length and slicing; a dict of equally long values, nested too. Tensors,
            arrays and frames are cut along their first dimension. Never changed.
        apply_padding : bool
            Repeat the last item of the input until all parts are equally long, as collectives need;
            `gather_in_order` drops the copies.

        Raises
        ------
        TypeError
            The inputs have no order, no length or no slices.
        ValueError
            The values of a dict are not equally long.

        Examples
        --------
        >>> def lengths(words):
        ...     with PartialState().split_between_processes(words) as part:
        ...         return [len(word) for word in part]
        >>> debug_launcher(lengths, (["a", "bb", "ccc"],))
        RankResults([[1, 2], [3]])
        """
        facts = self._process
        split = Split(facts.place.rank, facts.place.world_size, apply_padding)
        part = split.part_of(inputs)
        facts.splits.append(split)
        try:
            yield part
        finally:
            facts.splits.remove(split)

    def gather_in_order(self, part: Any) -> Any:
        """Every rank's results in the order of the split input, padding dropped, on every rank.

        For use inside ``with split_between_processes(...)``. A collective.

        Parameters
        ----------
        part : list, tuple, str, dict, Tensor, ndarray, DataFrame, ...
            One result for each item of this rank's part.

        Raises
        ------
        RuntimeError
            There is no split to be undone.
        ValueError
            A rank has not as many results as items; raised on all ranks.

        Examples
        --------
        >>> def lengths(words):
        ...     state = PartialState()
        ...     with state.split_between_processes(words) as part:
        ...         return state.gather_in_order([len(word) for word in part])
        >>> debug_launcher(lengths, (["a", "bb", "ccc"],))
        RankResults([[1, 2, 3], [1, 2, 3]])
        """
        facts = self._process
        if not facts.splits:
            raise RuntimeError(
                "gather_in_order puts together what split_between_processes dealt out: "
                "call it inside that `with` block"
            )
        return facts.splits[-1].join(facts.exchange(part))

    # -- the rest --------------------------------------------------------------------------------

    def set_device(self) -> None:
        """Make `device` the current device of this process.

        Examples
        --------
        >>> state.set_device()
        """
        self._process.set_device()

    def destroy_process_group(self, group: dist.ProcessGroup | None = None) -> None:
        """Destroy a process group, the default one unless another is given.

        In a launched rank the default group is left alone: the launcher tears it down once every
        rank is done. Without any group nothing happens.

        Examples
        --------
        >>> state.destroy_process_group()  # one process has no group
        """
        if group is not None or (not self.fork_launched and process_group.exists()):
            dist.destroy_process_group(group)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on each machine's main process only.

        Examples
        --------
        >>> state.print("said once on each machine")
        said once on each machine
        """
        if self.is_local_main_process:
            builtins.print(*args, **kwargs)  # noqa: T201, printing is its job


def _checked(index: int | None, name: str) -> int:
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ValueError(f"{name}={index!r} must be a rank, 0 or higher")
    return index
