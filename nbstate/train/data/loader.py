"""Dataloaders that tell GradientState where the loop stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from nbstate.operations import send_to_device
from nbstate.state import GradientState
from nbstate.train.data.rounds import RoundFacts, count_batches
from nbstate.train.data.shuffle import within
from nbstate.train.data.sources import DataPlace, Samples, Stream
from nbstate.train.randomness import share_random_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from nbstate.plugins import DataLoaderConfiguration
    from nbstate.train.data.shuffle import Shuffle

Item = TypeVar("Item")


@dataclass
class Progress:
    """Where a dataloader stands, and with it the views that `skip_first_batches` makes of it.

    Attributes
    ----------
    epoch, next_epoch : int
        Which epoch is, or was last, gone through, and which comes next.
    used : int
        Of the sampler's batches: how many all ranks have used up in this epoch.
    resume : tuple or None
        Where the next iteration is to go on, if a saved position was loaded: how many batches are
        used up, and torchdata's state of the inner dataloader at that point.
    snapshots : dict
        Such states in this epoch, by how many batches were used up.
    """

    epoch: int = 0
    next_epoch: int = 0
    used: int = 0
    resume: tuple[int, Any] | None = None
    snapshots: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """All that a prepared dataloader is told.

    Attributes
    ----------
    device : torch.device, optional
        Where batches are put; None leaves them where they are.
    rng_types : tuple of str
        Random numbers that ranks share from the start of each epoch.
    skip : int, optional
        How many of this rank's batches are left out in every epoch, in a view that skips.
    progress : Progress
        Shared with the views, so that a checkpoint within one of them holds its position.
    """

    place: DataPlace
    config: DataLoaderConfiguration
    shuffle: Shuffle
    device: torch.device | None = None
    rng_types: tuple[str, ...] = ()
    skip: int | None = None
    progress: Progress = field(default_factory=Progress)


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
    """

    def __init__(self, original: DataLoader[Any], setup: Setup) -> None:
        self.original, self.setup = original, setup
        self.end_of_dataloader = False
        self.round: RoundFacts | None = None
        self.number = 0
        self.even_batches = setup.config.even_batches
        self._progress = setup.progress
        self._inner_state: Any = None
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
        batches = len(self.original) - self._used_by(self.setup.skip or 0)
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
                self._progress.used += facts.batches
                self.number += 1
                yield self._placed(batch)
        finally:  # however the loop was left
            self._progress.used = 0
            self.end_of_dataloader, self.round = False, None
            if state.initialized:
                state._remove_dataloader(self)

    @property
    def epoch(self) -> int:
        """Which epoch this is, from 0."""
        return self._progress.epoch

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
        self._progress.next_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where this epoch stands, in a form that any number of ranks can go on from."""
        now = self._progress
        within = now.used > 0
        used, inner = now.resume or (0, None)
        return {
            "epoch": now.epoch if within else now.next_epoch,
            "batches": now.used if within else used,
            "shuffle": self.setup.shuffle.state_dict(within_epoch=within),
            "inner": now.snapshots.get(now.used) if within else inner,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration go on where the saved one stood."""
        self._progress.next_epoch = state["epoch"]
        self._progress.resume = (state["batches"], state["inner"])
        self.setup.shuffle.load_state_dict(state["shuffle"])

    def _batches(self) -> Iterator[tuple[Any, RoundFacts]]:
        """The rank's batches, each with the facts of its round."""
        raise NotImplementedError

    def _restored(self, inner: Any) -> int:
        """How many batches the inner dataloader has to skip, after torchdata restored its part."""
        state, self._inner_state = self._inner_state, None
        if state is None or not self.stateful:
            return self._progress.used
        inner.load_state_dict(state)
        return 0

    def _keep_snapshot(self, inner: Any, used: int) -> None:
        if self.stateful:
            now = self._progress
            kept = {at: state for at, state in now.snapshots.items() if at >= now.used}
            now.snapshots = {**kept, used: inner.state_dict()}

    def _begin_epoch(self) -> None:
        now, place, skip = self._progress, self.setup.place, self.setup.skip
        now.epoch, now.next_epoch = now.next_epoch, now.next_epoch + 1
        self.number = 0
        # A view that skips says itself where to go on; the loaded position is used up by it too.
        (resume_at, inner), now.resume = now.resume or (0, None), None
        now.used = resume_at if skip is None else self._used_by(skip)
        if not resume_at:  # within an epoch random numbers go on as they were saved
            share_random_state(self.setup.rng_types)
        self._inner_state = inner if now.used == resume_at else None
        self.setup.shuffle.begin_epoch(self.epoch, place.index, place.count)
        loader = self.original
        sources = (loader.dataset, *within(loader.batch_sampler), *within(loader.sampler))
        for source in {id(each): each for each in sources}.values():
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
        inner, used = self._source.loader, self._progress.used
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
