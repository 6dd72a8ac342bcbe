"""Dataloaders that tell GradientState where the loop stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from nbstate.operations import send_to_device
from nbstate.state import GradientState
from nbstate.train.data.rounds import RoundFacts, count_batches
from nbstate.train.data.sources import DataPlace, Samples, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from nbstate.plugins import DataLoaderConfiguration
    from nbstate.train.data.shuffle import Shuffle

Item = TypeVar("Item")


@dataclass(frozen=True)
class Setup:
    """All that a prepared dataloader is told.

    Attributes
    ----------
    device : torch.device, optional
        Where batches are put; None leaves them where they are.
    skip : int
        How many of this rank's batches are left out in every epoch.
    """

    place: DataPlace
    config: DataLoaderConfiguration
    shuffle: Shuffle
    device: torch.device | None = None
    skip: int = 0


class PreparedLoader:
    """One rank's batches of a dataloader; tells GradientState which batch is the last.

    Reading one batch ahead shows the end in time for the last batch. Attributes not named here are
    those of the dataloader it was made from. Made by `Accelerator.prepare`.

    Attributes
    ----------
    end_of_dataloader : bool
        Whether the batch in hand is the epoch's last.
    remainder : int
        How many samples of the batch in hand, counted over all ranks, are copies that even the
        ranks out; the others' `real` counts are in `round`.
    round : RoundFacts or None
        What every rank has in hand.
    number : int
        How many batches of this epoch have been handed out, to this rank.
    epoch : int
        Which epoch this is, from 0.
    """

    def __init__(self, original: DataLoader[Any], setup: Setup) -> None:
        self.original, self.setup = original, setup
        self.end_of_dataloader = False
        self.round: RoundFacts | None = None
        self.number = 0
        self.epoch = 0
        self.even_batches = setup.config.even_batches
        self._next_epoch = 0
        # Of the sampler's batches: used up in this epoch by all ranks, and to be left out at first.
        self._used = 0
        self._resume_at = 0
        # torchdata's state of the inner dataloader, by how many batches were used up at that point.
        self._snapshots: dict[int, Any] = {}
        self._resume_from: Any = None
        wanted = setup.config.use_stateful_dataloader or hasattr(original, "load_state_dict")
        self.stateful = wanted and isinstance(original.dataset, IterableDataset)

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # not there yet, while this is unpickled
            raise AttributeError(name)
        return getattr(self.original, name)

    def __repr__(self) -> str:
        place = self.setup.place
        return f"<{type(self).__name__}: part {place.index} of {place.count} of {self.original!r}>"

    def __len__(self) -> int:
        place, config = self.setup.place, self.setup.config
        batches = len(self.original) - self._used_by(self.setup.skip)
        return count_batches(
            max(0, batches),
            place.count,
            place.index,
            split=config.split_batches,
            even=self.even_batches,
        )

    def __iter__(self) -> Iterator[Any]:
        state = GradientState()
        state._add_dataloader(self)
        try:
            self._begin_epoch()
            for (batch, facts), last in with_last(self._batches()):
                self.end_of_dataloader, self.round = last, facts
                self._used += facts.batches
                self.number += 1
                yield self._placed(batch)
        finally:  # however the loop was left
            self._used = self._resume_at = 0
            self.end_of_dataloader, self.round = False, None
            if state.initialized:
                state._remove_dataloader(self)

    @property
    def remainder(self) -> int:
        return 0 if self.round is None else self.round.padding

    @property
    def total_batch_size(self) -> int:
        """How many samples all ranks together take at a time."""
        size = self._batch_size() or 1
        return size if self.setup.config.split_batches else size * self.setup.place.count

    @property
    def total_dataset_length(self) -> int:
        """How many samples the dataset has."""
        return len(self.original.dataset)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next: for samplers and datasets that shuffle by it."""
        self._next_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where this epoch stands, in a form that any number of ranks can go on from."""
        within = self._used > 0
        return {
            "epoch": self.epoch if within else self._next_epoch,
            "batches": self._used,
            "shuffle": self.setup.shuffle.state_dict(within_epoch=within),
            "inner": self._snapshots.get(self._used) if within else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration go on where the saved one stood."""
        self._next_epoch, self._resume_at = state["epoch"], state["batches"]
        self._resume_from = state["inner"]
        self.setup.shuffle.load_state_dict(state["shuffle"])

    def _batches(self) -> Iterator[tuple[Any, RoundFacts]]:
        """The rank's batches, each with the facts of its round."""
        raise NotImplementedError

    def _restored(self, inner: Any) -> int:
        """How many batches the inner dataloader has to skip, after torchdata restored its part."""
        state, self._resume_from = self._resume_from, None
        if state is None or not self.stateful:
            return self._used
        inner.load_state_dict(state)
        return 0

    def _keep_snapshot(self, inner: Any, used: int) -> None:
        if self.stateful:
            kept = {at: state for at, state in self._snapshots.items() if at >= self._used}
            self._snapshots = {**kept, used: inner.state_dict()}

    def _begin_epoch(self) -> None:
        self.epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self.number = 0
        self._used = self._resume_at or self._used_by(self.setup.skip)
        place = self.setup.place
        self.setup.shuffle.begin_epoch(self.epoch, place.index, place.count)
        loader = self.original
        for source in (loader.dataset, loader.batch_sampler, loader.sampler):
            if callable(set_epoch := getattr(source, "set_epoch", None)):
                set_epoch(self.epoch)

    def _used_by(self, own_batches: int) -> int:
        """How many of the sampler's batches all ranks use up while each takes this many."""
        return own_batches * (1 if self.setup.config.split_batches else self.setup.place.count)

    def _batch_size(self) -> int | None:
        size = self.original.batch_size or getattr(self.original.batch_sampler, "batch_size", None)
        return size if isinstance(size, int) else None

    def _placed(self, batch: Any) -> Any:
        device = self.setup.device
        if device is None or device.type == "cpu":  # where dataloaders put batches
            return batch
        return send_to_device(batch, device, non_blocking=self.setup.config.non_blocking)


class ShardedLoader(PreparedLoader):
    """A dataloader of which every rank reads its own part."""

    def __init__(self, original: DataLoader[Any], setup: Setup) -> None:
        super().__init__(original, setup)
        what = (original, setup.place, setup.shuffle, self._batch_size())
        split = setup.config.split_batches
        self._source: Stream | Samples
        if isinstance(original.dataset, IterableDataset):
            self._source = Stream(*what, split, stateful=self.stateful)
        else:
            self._source = Samples(*what, split)

    def _batches(self) -> Iterator[tuple[Any, RoundFacts]]:
        inner, used = self._source.loader, self._used
        skip = self._restored(inner)
        for batch, facts in self._source.batches(skip=skip, even=self.even_batches):
            used += facts.batches
            self._keep_snapshot(inner, used)
            yield batch, facts


def with_last(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """Each item, and whether it is the last: told by reading one ahead.

    Examples
    --------
    >>> list(with_last("ab"))
    [('a', False), ('b', True)]
    """
    iterator = iter(items)
    nothing = object()
    item: Any = next(iterator, nothing)
    while item is not nothing:
        following: Any = next(iterator, nothing)
        yield item, following is nothing
        item = following
