"""Where the order of an epoch comes from: agreed on by all ranks, repeatable, and resumable."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DistributedSampler

from nbstate.operations import broadcast_object_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader


class Shuffle:
    """The random numbers of one dataloader: for the order of samples and for its workers.

    All ranks work the whole order out alike and take their parts of it, so their generators have to
    agree. That is settled once, when the loader is prepared (rank 0's holds); after it no rank asks
    another, and no epoch draws from the global generators, so that a resumed training finds those
    as the uninterrupted one would.

    Parameters
    ----------
    loader : DataLoader
        The dataloader that is prepared; its sampler's generator is used where it has one.
    seed : int, optional
        Shuffle by this seed and the number of the epoch only.
    """

    def __init__(self, loader: DataLoader[Any], seed: int | None = None) -> None:
        self.order: torch.Generator = _generator_of(loader) or torch.Generator()
        if seed is None and _generator_of(loader) is None:
            self.order.manual_seed(_draw())
        agreed = broadcast_object_list([self.order.get_state(), _draw(), seed])
        state, self._workers_seed, self.seed = agreed
        self.order.set_state(state)
        self.workers = torch.Generator()
        self._at_epoch_start = state
        self._resumed: torch.Tensor | None = None

    def begin_epoch(self, epoch: int, rank: int, ranks: int) -> None:
        """Set the generators for an epoch; the workers of each rank get numbers of their own."""
        if self._resumed is not None:
            self.order.set_state(self._resumed)
            self._resumed = None
        elif self.seed is not None:
            self.order.manual_seed(self.seed + epoch)
        self._at_epoch_start = self.order.get_state()
        self.workers.manual_seed(self._workers_seed + epoch * ranks + rank)

    def state_dict(self, *, within_epoch: bool) -> dict[str, Any]:
        """What repeats the order from the start of this epoch, or of the next one."""
        order = self._at_epoch_start
        if not within_epoch:
            order = self.order.get_state() if self._resumed is None else self._resumed
        return {"order": order, "workers": self._workers_seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next epoch begin from a saved state."""
        self._resumed, self._workers_seed = state["order"], state["workers"]

    def ordered(self, sampler: Any) -> Ordered:
        """A sampler or batch sampler that draws from this object's generator."""
        for each in within(sampler):
            if isinstance(each, DistributedSampler) and each.num_replicas > 1:
                raise ValueError(
                    "this dataloader has a DistributedSampler, which deals the data out already; "
                    "prepare() does that too: leave the sampler out (shuffle=True is enough)"
                )
        return Ordered(sampler, self.order)


class Ordered:
    """A sampler or batch sampler that draws from a given generator; left as it is otherwise.

    Each epoch looks at it anew, so that what the user tells it in between holds: an epoch, weights.
    """

    def __init__(self, sampler: Any, order: torch.Generator) -> None:
        self.sampler, self.order = sampler, order

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        # Samplers may draw at any time until they are at their end.
        with _drawing_from(self.order, self.sampler):
            yield from self.sampler


def within(sampler: Any) -> Iterator[Any]:
    """A sampler, and the one that it takes its samples from, and so on."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def innermost(loader: DataLoader[Any]) -> Any:
    """The sampler that a dataloader's order comes from."""
    *_, inner = within(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    return inner


@contextmanager
def _drawing_from(order: torch.Generator, sampler: Any) -> Iterator[None]:
    """Have a sampler, and those within it, draw from a generator, and then from their own again."""
    drawing = [(each, each.generator) for each in within(sampler) if _draws(each)]
    # Another iteration that is not over yet gives back the generator that it found.
    borrowed = [(each, own) for each, own in drawing if own is not order]
    for each, _ in borrowed:
        each.generator = order
    try:
        yield
    finally:
        for each, own in borrowed:
            each.generator = own


def _draws(sampler: Any) -> bool:
    generator = getattr(sampler, "generator", sampler)
    return generator is None or isinstance(generator, torch.Generator)


def _generator_of(loader: DataLoader[Any]) -> torch.Generator | None:
    generator = getattr(innermost(loader), "generator", None) or loader.generator
    return generator if isinstance(generator, torch.Generator) else None


def _draw() -> int:
    return int(torch.empty((), dtype=torch.int64).random_(1 << 62))
