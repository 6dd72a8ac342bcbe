"""Which samples each rank gets: batches dealt out in rounds. Pure arithmetic, no processes.

    sampler:   [0 1 2] [3 4 5] [6 7]        3 batches, 2 ranks
    round 0:   rank 0: [0 1 2]   rank 1: [3 4 5]
    round 1:   rank 0: [6 7 0]   rank 1: [1 2 3]     real: 2 and 0, the other 4 are copies

A *round* is what all ranks take at the same time. Every rank works all rounds out alike, so each
knows which samples of its own and of the others are copies, and nobody has to ask.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbstate.state.splitting import share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True)
class RoundFacts:
    """What one round holds, without the samples.

    Attributes
    ----------
    sizes : tuple of int
        How many samples each rank gets; 0 for a rank that gets no batch.
    real : tuple of int
        How many of them, from the first, are no copies.
    batches : int
        How many of the sampler's batches were used up.
    opaque : bool
        The sampler's items are whole batches that cannot be cut; each counts as one.
    """

    sizes: tuple[int, ...]
    real: tuple[int, ...]
    batches: int
    opaque: bool = False

    @property
    def padding(self) -> int:
        """How many samples of the round are copies."""
        return sum(self.sizes) - sum(self.real)

    @property
    def even(self) -> bool:
        """Whether every rank gets as many samples."""
        return len(set(self.sizes)) == 1


@dataclass(frozen=True)
class Round:
    """One batch for each rank, None for a rank that gets none, and the facts."""

    parts: tuple[Any, ...]
    facts: RoundFacts


def deal(
    batches: Iterable[Any],
    ranks: int,
    *,
    batch_size: int | None = None,
    split: bool = False,
    even: bool = True,
    skip: int = 0,
    whole: bool = False,
) -> Iterator[Round]:
    """The rounds in which a sampler's batches are dealt out.

    Parameters
    ----------
    batches : iterable
        Lists of samples or of their indices. Items of another type are batches that cannot be cut.
    ranks : int
        How many ranks take part.
    batch_size : int, optional
        The size of a full batch. The last round is filled up to it; None fills up to the largest
        batch of the round.
    split : bool
        Each batch is one round, cut into a part for each rank; otherwise each batch goes to one
        rank.
    even : bool
        Fill the last round up with the epoch's first samples until all ranks have as many. Before
        it, batches of varying sizes stay as they are; only a rank without any samples gets copies.
    skip : int
        Begin after this many batches, as if they had been dealt out before.
    whole : bool
        Lists too are batches that cannot be cut.

    Examples
    --------
    >>> [round.parts for round in deal([[0, 1], [2, 3], [4]], 2, batch_size=2)]
    [([0, 1], [2, 3]), ([4, 0], [1, 2])]
    """
    source, in_a_round = _Ahead(batches), 1 if split else ranks
    first = list(itertools.islice(source, min(skip, in_a_round)))
    for _ in itertools.islice(source, max(0, skip - in_a_round)):
        pass
    while group := list(itertools.islice(source, in_a_round)):
        first = first or group
        opaque = whole or _is_opaque(group[0])
        parts = [[batch] if opaque else list(batch) for batch in group]
        full = 0 if opaque or batch_size is None else batch_size
        if split:
            to_be_filled = even and len(parts[0]) < full and source.ended()
            full = -(-full // ranks)
            parts = _cut(parts[0], ranks, full if to_be_filled else None)
        parts += [[] for _ in range(ranks - len(parts))]
        target = _target([*map(len, parts)], full, source) if even and ranks > 1 else 0
        yield _round(parts, len(group), opaque, target, _samples(first, whole))


class _Ahead:
    """An iterator that tells whether it is at its end; only when it is asked it reads one ahead."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items, self._read = iter(items), list[Any]()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._read.pop() if self._read else next(self._items)

    def ended(self) -> bool:
        self._read = self._read or list(itertools.islice(self._items, 1))
        return not self._read


def count_batches(batches: int, ranks: int, rank: int, *, split: bool, even: bool) -> int:
    """How many batches a rank gets of this many; with uneven splits it may get less."""
    if split:
        return batches
    rounds, left = divmod(batches, ranks)
    return rounds + (left > (0 if even else rank))


def _is_opaque(batch: Any) -> bool:
    return not isinstance(batch, (list, tuple))


def _samples(batches: list[Any], whole: bool) -> Iterator[Any]:
    for batch in batches:
        yield from [batch] if whole or _is_opaque(batch) else batch


def _cut(batch: list[Any], ranks: int, each: int | None) -> list[list[Any]]:
    """Parts of so many samples, as far as there are; None for parts as equal as can be."""
    if each is None:
        bounds = [share(len(batch), rank, ranks) for rank in range(ranks)]
        return [batch[part.start : part.stop] for part in bounds]
    return [batch[rank * each : (rank + 1) * each] for rank in range(ranks)]


def _target(sizes: list[int], full: int, source: _Ahead) -> int:
    """How many samples each part is filled up to, 0 where they stay as they are."""
    target = max(full, *sizes)
    if min(sizes) < target and not source.ended():
        return max(sizes) if 0 in sizes else 0
    return target


def _round(
    parts: list[list[Any]], batches: int, opaque: bool, target: int, filling: Iterable[Any]
) -> Round:
    real = tuple(map(len, parts))
    copies = itertools.cycle(filling)
    parts = [[*part, *itertools.islice(copies, max(0, target - len(part)))] for part in parts]
    facts = RoundFacts(tuple(map(len, parts)), real, batches, opaque)
    whole = [part[0] if opaque and part else part or None for part in parts]
    return Round(tuple(whole), facts)
