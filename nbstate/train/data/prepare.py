"""From a user's dataloader to one rank's."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from nbstate.plugins import DataLoaderConfiguration
from nbstate.train.data.dispatch import DispatchedLoader
from nbstate.train.data.loader import PreparedLoader, Setup, ShardedLoader
from nbstate.train.data.shuffle import Shuffle, innermost
from nbstate.train.data.sources import rebuilt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbstate.train.data.sources import DataPlace


def prepare_data_loader(
    loader: DataLoader[Any],
    place: DataPlace,
    config: DataLoaderConfiguration | None = None,
    device: torch.device | None = None,
    rng_types: tuple[str, ...] = (),
) -> PreparedLoader:
    """One rank's dataloader, made from the one that a single process would use: a collective.

    Parameters
    ----------
    loader : DataLoader
        Left as it is.
    place : DataPlace
        Which part is this rank's.
    config : DataLoaderConfiguration, optional
        How batches are dealt out.
    device : torch.device, optional
        Where batches are put; None leaves them where they are.
    rng_types : tuple of str
        Random numbers that ranks share from the start of each epoch.

    Raises
    ------
    ValueError
        With ``split_batches`` the batch size must be a multiple of the number of ranks. A dataset
        whose items are whole batches cannot be cut unless rank 0 reads it: iterating tells so.
    """
    config = config or DataLoaderConfiguration()
    if isinstance(loader, PreparedLoader):
        return loader
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if config.split_batches and isinstance(size, int) and size % place.count:
        raise ValueError(
            f"split_batches=True cuts each batch into {place.count} equal parts, one for each "
            f"rank, and batch_size={size} is no multiple of {place.count}"
        )
    setup = Setup(place, config, Shuffle(loader, _seed(loader, config)), device, rng_types)
    streamed = isinstance(loader.dataset, IterableDataset)
    dispatched = streamed if config.dispatch_batches is None else config.dispatch_batches
    kind = DispatchedLoader if dispatched and place.count > 1 else ShardedLoader
    return kind(loader, setup)


def skip_first_batches(dataloader: Iterable[Any], num_batches: int = 0) -> Iterable[Any]:
    """A dataloader that leaves out the first batches of every epoch: to go on within one.

    After `Accelerator.load_state` the prepared dataloader goes on where it was saved without this.
    Where the number is given all the same, as Accelerate's documentation has it, it counts from the
    start of that epoch, and the dataloader itself gives whole epochs from the next one on.

    Parameters
    ----------
    dataloader : DataLoader or prepared dataloader
        Left as it is. The samples of skipped batches are not read, but for streams and dataloaders
        with an iteration of their own; these have to be prepared before, not after.
    num_batches : int
        How many of the rank's own batches to leave out.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> [batch.tolist() for batch in skip_first_batches(DataLoader(range(5), batch_size=2), 1)]
    [[2, 3], [4]]
    """
    if num_batches < 0:
        raise ValueError(f"num_batches={num_batches} must be 0 or more")
    if isinstance(dataloader, PreparedLoader):
        skip = (dataloader.setup.skip or 0) + num_batches
        setup = dataclasses.replace(dataloader.setup, skip=skip)
        return type(dataloader)(dataloader.original, setup)
    if not _reads_by_index(dataloader):
        return Skipping(dataloader, num_batches)
    if dataloader.batch_sampler is None:
        sampler = Skipping(dataloader.sampler, num_batches)
        return rebuilt(dataloader, dataloader.generator, sampler=sampler, batch_size=None)
    batches = Skipping(dataloader.batch_sampler, num_batches)
    return rebuilt(dataloader, dataloader.generator, batch_sampler=batches)


class Skipping:
    """A sampler, batch sampler or dataloader without its first items."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        # By these names a prepared dataloader finds the sampler within and the size of a batch.
        self.sampler, self.batch_size = sampler, getattr(sampler, "batch_size", None)
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.sampler, self._skip, None)

    def __len__(self) -> int:
        return max(0, len(self.sampler) - self._skip)  # type: ignore[arg-type]


def _reads_by_index(loader: Iterable[Any]) -> TypeGuard[DataLoader[Any]]:
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and type(loader).__iter__ is DataLoader.__iter__
    )


def _seed(loader: DataLoader[Any], config: DataLoaderConfiguration) -> int | None:
    """The seed to shuffle by, None where the sampler's generator runs on from epoch to epoch."""
    if not config.use_seedable_sampler or not isinstance(innermost(loader), RandomSampler):
        return None
    return torch.initial_seed() if config.data_seed is None else config.data_seed
