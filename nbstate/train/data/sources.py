"""What a rank reads of a dataset: its batches of samples, or its parts of a stream."""

from __future__ import annotations

import collections
import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import DataLoader, IterableDataset

from nbstate.train.data.rounds import deal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from nbstate.train.data.rounds import RoundFacts
    from nbstate.train.data.shuffle import Shuffle


@dataclass(frozen=True)
class DataPlace:
    """Who gets which data: ranks that share layers (tensor parallelism) get the same.

    Attributes
    ----------
    index, count : int
        Which part is this rank's, and how many parts there are.
    parts : tuple of int
        The part of every rank, by global rank.
    """

    index: int = 0
    count: int = 1
    parts: tuple[int, ...] = (0,)


class _Dealer:
    """Deals batches out in rounds and keeps one rank's."""

    def __init__(self, place: DataPlace, batch_size: int | None, split: bool) -> None:
        self.place, self.batch_size, self.split = place, batch_size, split
        self.even, self.whole = True, False

    def own(self, batches: Iterable[Any], skip: int = 0) -> Iterator[tuple[Any, RoundFacts]]:
        rounds = deal(
            batches,
            self.place.count,
            batch_size=self.batch_size,
            split=self.split,
            even=self.even,
            skip=skip,
            whole=self.whole,
        )
        for round_ in rounds:
            if self.split and round_.facts.opaque and self.place.count > 1:
                raise ValueError(
                    "split_batches=True cuts each batch into a part for each rank, and this "
                    "dataloader's dataset gives whole batches, which cannot be cut before they are "
                    "read; add dispatch_batches=True, so that rank 0 reads and cuts them, or leave "
                    "split_batches out, so that ranks get whole ones in turn"
                )
            part = round_.parts[self.place.index]
            if part is not None:
                yield part, round_.facts


class Samples(_Dealer):
    """One rank's batches of a dataset that can be indexed: a batch sampler of its own."""

    def __init__(
        self,
        original: DataLoader[Any],
        place: DataPlace,
        shuffle: Shuffle,
        batch_size: int | None,
        split: bool,
    ) -> None:
        super().__init__(place, batch_size, split)
        self._skip = 0
        self._facts: collections.deque[RoundFacts] = collections.deque()
        # Without a batch sampler the sampler's items are the batches.
        unbatched = original.batch_sampler is None
        self._batches = shuffle.ordered(original.sampler if unbatched else original.batch_sampler)
        how: dict[str, Any] = {"batch_sampler": self}
        if unbatched:
            how = {"sampler": self, "batch_size": None}
        self.loader = rebuilt(original, shuffle.workers, **how)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        facts = self._facts = collections.deque["RoundFacts"]()
        for part, of_round in self.own(self._batches, self._skip):
            facts.append(of_round)
            yield part

    def batches(self, *, skip: int, even: bool) -> Iterator[tuple[Any, RoundFacts]]:
        """The rank's batches after `skip` of the sampler's, each with the facts of its round."""
        self._skip, self.even = skip, even
        # Workers fetch ahead, but batches come in the order in which they were asked for.
        for batch in self.loader:
            yield batch, self._facts.popleft()


class Stream(_Dealer, IterableDataset[Any]):
    """One rank's parts of a dataset that can only be iterated; every rank reads all of it.

    The facts travel with each part, so workers may read: each deals its own samples out.
    """

    def __init__(
        self,
        original: DataLoader[Any],
        place: DataPlace,
        shuffle: Shuffle,
        batch_size: int | None,
        split: bool,
        *,
        stateful: bool = False,
    ) -> None:
        super().__init__(place, batch_size, split)
        self._skip, self.whole = 0, batch_size is None
        self._dataset, self._drop_last = cast("Iterable[Any]", original.dataset), original.drop_last
        collate = partial(_collated, original.collate_fn)
        how: dict[str, Any] = {"dataset": self, "batch_size": None, "collate_fn": collate}
        self.loader = rebuilt(original, shuffle.workers, stateful=stateful, **how)
        dataset: Any = original.dataset
        if hasattr(dataset, "state_dict"):
            # A StatefulDataLoader asks its dataset, which is this object.
            self.state_dict, self.load_state_dict = dataset.state_dict, dataset.load_state_dict

    def __iter__(self) -> Iterator[tuple[Any, RoundFacts]]:
        if self.batch_size is None:
            return self.own(self._dataset, self._skip)
        batches = chunks(self._dataset, self.batch_size, drop_last=self._drop_last)
        return self.own(batches, self._skip)

    def batches(self, *, skip: int, even: bool) -> Iterator[tuple[Any, RoundFacts]]:
        """The rank's batches after `skip` of the stream's, each with the facts of its round."""
        self.even = even
        # Workers deal streams of their own: with them whole rounds are left out here instead.
        self._skip = 0 if self.loader.num_workers else skip
        left_out = skip - self._skip
        for batch, of_round in self.loader:
            if left_out > 0:
                left_out -= of_round.batches
            else:
                yield batch, of_round


def chunks(samples: Iterable[Any], size: int, *, drop_last: bool) -> Iterator[list[Any]]:
    """Lists of `size` samples; the last may be shorter, or is dropped."""
    chunk: list[Any] = []
    for sample in samples:
        chunk.append(sample)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk and not drop_last:
        yield chunk


def rebuilt(
    original: DataLoader[Any],
    generator: torch.Generator | None,
    *,
    stateful: bool = False,
    **how: Any,
) -> DataLoader[Any]:
    """A dataloader like the original but for what is said; torchdata's where it is `stateful`."""
    settings: dict[str, Any] = {
        "dataset": original.dataset,
        "collate_fn": original.collate_fn,
        "num_workers": original.num_workers,
        "pin_memory": original.pin_memory,
        "timeout": original.timeout,
        "worker_init_fn": original.worker_init_fn,
        "multiprocessing_context": original.multiprocessing_context,
        "prefetch_factor": original.prefetch_factor,
        "persistent_workers": original.persistent_workers,
        "generator": generator,
    }
    made: DataLoader[Any] = (_stateful_class() if stateful else DataLoader)(**settings | how)
    return made


def _stateful_class() -> Any:
    try:
        return importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    except ImportError as error:
        raise ImportError(
            "use_stateful_dataloader=True needs torchdata: pip install torchdata"
        ) from error


def _collated(
    collate: Callable[[Any], Any], part: tuple[Any, RoundFacts]
) -> tuple[Any, RoundFacts]:
    samples, of_round = part
    return collate(samples), of_round
