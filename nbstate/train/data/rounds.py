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
) -> Iterator[Round]:
    """The rounds in which a sampler's batches are dealt out.

    Parameters
    ----------
    batches : iterable
        Lists of samples or of their indices. Items of another type are batches that cannot be cut.
    ranks : int
        How many ranks take part.
    batch_size : int, optional
        The size of a full batch. Even rounds are filled up to it; None fills up to the largest
        batch of the round.
    split : bool
        Each batch is one round, cut into a part for each rank; otherwise each batch goes to one
        rank.
    even : bool
        Fill the last round up with the epoch's first samples until all ranks have as many.
    skip : int
        Begin after this many batches, as if they had been dealt out before.

    Examples
    --------
    >>> [round.parts for round in deal([[0, 1], [2, 3], [4]], 2, batch_size=2)]
    [([0, 1], [2, 3]), ([4, 0], [1, 2])]
    """
    batches, in_a_round = iter(batches), 1 if split else ranks
    filling = _first_samples(itertools.islice(batches, min(skip, in_a_round)))
    batches = itertools.islice(batches, max(0, skip - in_a_round), None)
    for group in _groups(batches, in_a_round):
        opaque = not isinstance(group[0], (list, tuple))
        parts = [[batch] if opaque else list(batch) for batch in group]
        if split:
            parts = _cut(parts[0], ranks, batch_size if even else None)
        filling = filling or list(itertools.chain(*parts))
        parts += [[] for _ in range(ranks - len(parts))]
        yield _round(parts, len(group), opaque, _target(parts, batch_size, split, even), filling)


def count_batches(batches: int, ranks: int, rank: int, *, split: bool, even: bool) -> int:
    """How many batches a rank gets of this many; with uneven splits it may get less."""
    if split:
        return batches
    rounds, left = divmod(batches, ranks)
    return rounds + (left > (0 if even else rank))


def _first_samples(skipped: Iterable[Any]) -> list[Any]:
    return [
        sample
        for batch in skipped
        for sample in (batch if isinstance(batch, (list, tuple)) else [batch])
    ]


def _groups(batches: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while group := list(itertools.islice(batches, size)):
        yield group


def _cut(batch: list[Any], ranks: int, batch_size: int | None) -> list[list[Any]]:
    if batch_size is None:
        bounds = [share(len(batch), rank, ranks) for rank in range(ranks)]
        return [batch[part.start : part.stop] for part in bounds]
    each = -(-batch_size // ranks)
    return [batch[rank * each : (rank + 1) * each] for rank in range(ranks)]


def _target(parts: list[list[Any]], batch_size: int | None, split: bool, even: bool) -> int | None:
    """How many samples each part is filled up to; None where they stay as they are."""
    if not even or len(parts) == 1:
        return None
    full = 0 if batch_size is None else -(-batch_size // len(parts)) if split else batch_size
    return max(full, *map(len, parts))


def _round(
    parts: list[list[Any]], batches: int, opaque: bool, target: int | None, filling: list[Any]
) -> Round:
    real = tuple(map(len, parts))
    if target is not None:
        copies = itertools.cycle(filling)
        parts = [[*part, *itertools.islice(copies, target - len(part))] for part in parts]
    facts = RoundFacts(tuple(map(len, parts)), real, batches, opaque)
    whole = [part[0] if opaque and part else part or None for part in parts]
    return Round(tuple(whole), facts)
