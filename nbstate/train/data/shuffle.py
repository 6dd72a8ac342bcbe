"""Where the order of an epoch comes from: agreed on by all ranks, repeatable, and resumable."""

from __future__ import annotations

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
        return iter(_drawing_from(self.order, self.sampler))


def within(sampler: Any) -> Iterator[Any]:
    """A sampler, and the one that it takes its samples from, and so on."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def innermost(loader: DataLoader[Any]) -> Any:
    """The sampler that a dataloader's order comes from."""
    *_, inner = within(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    return inner


def _drawing_from(order: torch.Generator, sampler: Any) -> Any:
    """The sampler, or its twin where it would draw from another generator."""
    replaced: dict[str, Any] = {}
    generator = getattr(sampler, "generator", sampler)
    if generator is None or isinstance(generator, torch.Generator):
        replaced["generator"] = order
    inner = getattr(sampler, "sampler", None)
    if inner is not None and (ordered := _drawing_from(order, inner)) is not inner:
        replaced["sampler"] = ordered
    return _twin(sampler, replaced) if replaced else sampler


def _twin(sampler: Any, replaced: dict[str, Any]) -> Any:
    """An object with the sampler's own attributes, not copies of them, but for those replaced.

    With a copy all that a sampler changes in itself while it is iterated would be lost.
    """

    def attribute(name: str) -> property:
        def change(_: Any, value: Any) -> None:
            replaced[name] = value

        return property(lambda _: replaced[name], change)

    kind, attributes = type(sampler), {name: attribute(name) for name in replaced}
    twin: Any = object.__new__(type(kind.__name__, (kind,), attributes))
    twin.__dict__ = sampler.__dict__
    return twin


def _generator_of(loader: DataLoader[Any]) -> torch.Generator | None:
    generator = getattr(innermost(loader), "generator", None) or loader.generator
    return generator if isinstance(generator, torch.Generator) else None


def _draw() -> int:
    return int(torch.empty((), dtype=torch.int64).random_(1 << 62))
