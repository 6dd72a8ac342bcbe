"""Cutting inputs into one part for each rank, and putting results together again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any


def share(length: int, rank: int, world_size: int) -> range:
    """The positions that are a rank's: contiguous, the first ranks taking one more where needed.

    Examples
    --------
    >>> [list(share(5, rank, 3)) for rank in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    each, extra = divmod(length, world_size)
    start = rank * each + min(rank, extra)
    return range(start, start + each + (rank < extra))


@dataclass(eq=False)
class Split:
    """One rank's view of inputs dealt to all: its part, and how to undo the dealing."""

    rank: int
    world_size: int
    padded: bool
    # How many items there are; None while an iterator has not been read to its end.
    length: int | None = None
    dealt: bool = False

    def part_of(self, inputs: Any) -> Any:
        """The part of the inputs that is this rank's.

        Raises
        ------
        TypeError
            The inputs cannot be split.
        ValueError
            The values of a dict are not equally long.
        """
        if isinstance(inputs, Iterator):
            self.dealt = True
            return self._deal(inputs)
        self.length = _length(inputs)
        return self._cut(inputs)

    def join(self, parts: list[Any]) -> Any:
        """Every rank's results, one for each item, in the order of the input and without padding.

        Raises
        ------
        ValueError
            A rank has not as many results as items.
        """
        lengths = [_length(part) for part in parts]
        if self.dealt:
            return _interleave(parts, lengths, self.length)
        assert self.length is not None
        shares = [len(share(self.length, rank, self.world_size)) for rank in range(len(parts))]
        longest = max(shares)
        for rank, (got, due) in enumerate(zip(lengths, shares, strict=True)):
            if got not in {due, longest if self.padded else due}:
                raise ValueError(
                    f"gather_in_order needs one result for each item: "
                    f"rank {rank} had {longest if self.padded else due} and gave {got}"
                )
        return concatenate([_cut(part, 0, due) for part, due in zip(parts, shares, strict=True)])

    def _cut(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return {key: self._cut(value) for key, value in inputs.items()}
        length = len(inputs)
        mine = share(length, self.rank, self.world_size)
        missing = len(share(length, 0, self.world_size)) - len(mine) if self.padded else 0
        if _is_rows(inputs):
            return _take(inputs, [*mine, *[length - 1] * (missing if length else 0)])
        if self.padded and length % self.world_size and not _can_be_joined(inputs):
            inputs = list(inputs)  # on every rank, so that all parts are of one type
        part = _cut(inputs, mine.start, mine.stop)
        return (
            concatenate([part, *[_cut(inputs, length - 1, length)] * missing]) if missing else part
        )

    def _deal(self, items: Iterator[Any]) -> Iterator[Any]:
        position = -1
        item = None
        for position, item in enumerate(items):
            if position % self.world_size == self.rank:
                yield item
        self.length = position + 1
        # The last round went no further than `position`.
        if self.padded and self.length and 0 <= position % self.world_size < self.rank:
            yield item


def _length(inputs: Any) -> int:
    if isinstance(inputs, Mapping):
        return _equal_length(inputs)
    what = f"a {type(inputs).__name__}"
    if isinstance(inputs, AbstractSet):
        raise TypeError(f"{what} has no order that ranks could agree on; split sorted(...) instead")
    streams = _is_a("torch.utils.data", "IterableDataset", inputs)
    if streams or not isinstance(inputs, Sized) or getattr(inputs, "ndim", 1) == 0:
        advice = (
            "iter(...) of it" if isinstance(inputs, Iterable) else "a list, tensor, dict or such"
        )
        raise TypeError(
            f"{what} cannot be split between processes: it has no rows to count; give {advice}"
        )
    return len(inputs)


def _equal_length(values: Mapping[Any, Any]) -> int:
    lengths = {}
    for key, value in values.items():
        try:
            lengths[key] = _length(value)
        except TypeError as error:
            raise TypeError(f"{key!r}: {error}") from None
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key!r}: {length}" for key, length in lengths.items())
        raise ValueError(f"the values of a dict to split must be equally long, they are {told}")
    return next(iter(lengths.values()), 0)


def _cut(inputs: Any, start: int, stop: int) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _cut(value, start, stop) for key, value in inputs.items()}
    if hasattr(inputs, "iloc"):  # pandas
        return inputs.iloc[start:stop]
    try:
        return inputs[start:stop]
    except (TypeError, KeyError) as error:
        raise TypeError(
            f"a {type(inputs).__name__} cannot be split between processes: it cannot be sliced; "
            f"give list(...) of it"
        ) from error


def _can_be_joined(inputs: Any) -> bool:
    """Whether `concatenate` gives the kind of thing that it gets."""
    arrays = _is_a("torch", "Tensor", inputs) or _is_a("numpy", "ndarray", inputs)
    return arrays or hasattr(inputs, "iloc") or isinstance(inputs, (list, tuple, str, bytes))


def concatenate(parts: Sequence[Any]) -> Any:
    """The parts in one piece of their kind; pieces of no known kind become a list of all items."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    if _is_a("torch", "Tensor", first):
        return sys.modules["torch"].cat([part.to(first.device) for part in parts])
    if _is_a("numpy", "ndarray", first):
        return sys.modules["numpy"].concatenate(parts)
    if hasattr(first, "iloc"):
        return sys.modules["pandas"].concat(parts)
    if isinstance(first, (str, bytes)):
        return type(first)().join(parts)
    items = [item for part in parts for item in part]
    return tuple(items) if isinstance(first, tuple) else items


def _interleave(parts: list[Any], lengths: list[int], total: int | None) -> list[Any]:
    """Items dealt one by one, back in their order; what came after the last was padding."""
    rounds = range(max(lengths))
    items = [
        part[i] for i in rounds for part, length in zip(parts, lengths, strict=True) if i < length
    ]
    return items[:total]


def _is_rows(inputs: Any) -> bool:
    """Whether these are rows to be chosen by position: a Dataset of torch or of `datasets`."""
    return _is_a("datasets", "Dataset", inputs) or _is_a("torch.utils.data", "Dataset", inputs)


def _take(inputs: Any, positions: Sequence[int]) -> Any:
    if _is_a("datasets", "Dataset", inputs):
        return inputs.select(positions)
    data = sys.modules["torch.utils.data"]
    if isinstance(inputs, data.Subset):
        return data.Subset(inputs.dataset, [inputs.indices[i] for i in positions])
    return data.Subset(inputs, list(positions))


def _is_a(module: str, name: str, value: object) -> bool:
    """Whether it is of a class, without importing: a module never loaded has no objects."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name, ()))
