"""The variables of ranks, from the kernel: given, read, spread, collected, made alike."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from nbstate.rank import cells
from nbstate.session.selection import select

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbstate.results import RankResults
    from nbstate.session.errand import Calls
    from nbstate.session.selection import Selection


class Variables:
    """What a `Session` does with the variables of its ranks."""

    world_size: int

    _do: Callable[..., RankResults]
    """Has ranks do something; see `Session`."""

    def push(self, **variables: Any) -> None:
        """Give every rank these variables.

        Big tensors and arrays travel in memory that all ranks share until one writes to it.

        Raises
        ------
        UnpicklableError
            A value cannot travel; the message names the path to the part that cannot.

        Examples
        --------
        >>> session.push(weights=torch.ones(3))
        >>> session.pull("weights.sum().item()")
        RankResults([3.0, 3.0])
        """
        call: Calls = (cells.assign, (variables,), {})
        self._do("all", call, "push", said="kept", given=variables)

    def pull(self, expression: str, ranks: Selection = "all") -> RankResults:
        """Return the value that an expression, such as a name, has on each rank.

        Examples
        --------
        >>> session.pull("lr + rank")
        RankResults([0.1, 1.1])
        >>> session["lr"]
        RankResults([0.1, 0.1])
        """
        return self._do(ranks, (cells.evaluate, (expression,), {}), expression, said="kept")

    def __getitem__(self, expression: str) -> RankResults:
        return self.pull(expression)

    def __setitem__(self, name: str, value: object) -> None:
        self.push(**{name: value})

    def scatter(self, name: str, values: Any) -> None:
        """Give each rank its part of `values` as the variable `name`.

        The parts are contiguous and differ in length by at most one, as those of
        `PartialState.split_between_processes`.

        Examples
        --------
        >>> session.scatter("part", ["a", "b", "c"])
        >>> session["part"]
        RankResults([['a', 'b'], ['c']])
        """
        from nbstate.state.splitting import Split

        parts = [
            Split(rank, self.world_size, padded=False).part_of(values)
            for rank in range(self.world_size)
        ]
        calls: Calls = {
            rank: (cells.assign, ({name: part},), {}) for rank, part in enumerate(parts)
        }
        self._do("all", calls, "scatter", said="kept", given={name: values})

    def gather(self, name: str) -> Any:
        """Return the ranks' parts of the variable `name` as one, in rank order.

        Examples
        --------
        >>> session.cell("squares = [rank**2]", collect=False)
        >>> session.gather("squares")
        [0, 1]
        """
        from nbstate.state.splitting import concatenate

        return concatenate(list(self.pull(name)))

    def sync(self, name: str, root: int = 0) -> None:
        """Give the value that `name` has on rank `root` to all other ranks.

        A module that all ranks have keeps its identity: it receives root's weights.

        Examples
        --------
        >>> session.run(lambda: exec("lr = 10 ** -rank", globals()))
        >>> session.sync("lr", root=1)
        >>> session["lr"]
        RankResults([0.1, 0.1])
        """
        (source,) = select(root, self.world_size)
        ((payload, buffers),) = self._do(source, (cells.pack, (name,), {}), "sync", said="kept")
        raw = [pickle.PickleBuffer(buffer) for buffer in buffers]
        others = [rank for rank in range(self.world_size) if rank != source]
        if others:
            self._do(others, (cells.unpack, (name, payload, raw), {}), "sync", said="kept")
