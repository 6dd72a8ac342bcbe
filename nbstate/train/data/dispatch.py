"""Dataloaders that rank 0 reads for all."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.utils.data import IterableDataset

from nbstate.operations import broadcast_object_list
from nbstate.state import PartialState
from nbstate.train.data import rows
from nbstate.train.data.loader import PreparedLoader, with_last
from nbstate.train.data.rounds import RoundFacts, deal
from nbstate.train.data.sources import rebuilt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.utils.data import DataLoader

    from nbstate.train.data.loader import Setup


@dataclass
class _Delivery:
    """What rank 0 sends to one rank in one round.

    That it is the last round is sent with it: a rank that gets nothing in it would otherwise wait
    to hear so, while the others wait for it in a collective of the round before.
    """

    facts: RoundFacts | None = None
    batch: Any = None
    last: bool = True
    error: BaseException | None = None


class DispatchedLoader(PreparedLoader):
    """A dataloader that rank 0 reads; it sends every rank its part of each round.

    For data that only one process can or should read. An error while reading is raised on every
    rank.
    """

    def __init__(self, original: DataLoader[Any], setup: Setup) -> None:
        super().__init__(original, setup)
        self._inner: DataLoader[Any] | None = None
        if PartialState().process_index == 0:
            how = _batching(original, setup)
            self._inner = rebuilt(original, setup.shuffle.workers, stateful=self.stateful, **how)

    def _batches(self) -> Iterator[tuple[Any, RoundFacts]]:
        deliveries = _received() if self._inner is None else self._sent(self._inner)
        for delivery in deliveries:
            if delivery.error is not None:
                raise delivery.error
            if delivery.facts is not None and delivery.batch is not None:
                yield delivery.batch, delivery.facts

    def _sent(self, inner: Iterable[Any]) -> Iterator[_Delivery]:
        """Send each round as it is read, and hand out rank 0's own part."""
        parts = self.setup.place.parts
        try:
            last = False
            for (facts, batches), last in with_last(self._read(inner)):
                yield _delivered([_Delivery(facts, batches[part], last) for part in parts])
            if not last:  # there was nothing to read
                yield _delivered([_Delivery() for _ in parts])
        except Exception as error:
            yield _delivered([_Delivery(error=error) for _ in parts])

    def _read(self, inner: Iterable[Any]) -> Iterator[tuple[RoundFacts, list[Any]]]:
        """Each round's facts, and the batch for each part."""
        # Rounds are dealt in references, (number of the batch, its row), and made of rows after.
        held: dict[int, Any] = {}
        start, skip = self._progress.used, self._restored(inner)

        def references() -> Iterator[Any]:
            for number, batch in enumerate(itertools.islice(inner, skip, None)):
                held[number] = batch
                self._keep_snapshot(inner, start + number + 1)
                length = rows.count(batch)
                yield number if length is None else [(number, row) for row in range(length)]

        rounds = deal(
            references(),
            self.setup.place.count,
            batch_size=self._batch_size(),
            split=self.setup.config.split_batches,
            even=self.even_batches,
        )
        first_round = used = 0
        for round_ in rounds:
            batches = round_.facts.batches
            first_round = first_round or batches
            yield round_.facts, [_made_of(held, part) for part in round_.parts]
            # The first round stays: the last one may be filled up with its rows.
            for number in range(max(first_round, used), used + batches):
                del held[number]
            used += batches


def _batching(original: DataLoader[Any], setup: Setup) -> dict[str, Any]:
    """How rank 0's dataloader makes batches: as the original does, in the order agreed on."""
    if isinstance(original.dataset, IterableDataset):
        size = original.batch_size
        return {"batch_size": size, **({} if size is None else {"drop_last": original.drop_last})}
    if original.batch_sampler is None:
        return {"batch_size": None, "sampler": setup.shuffle.ordered(original.sampler)}
    return {"batch_sampler": setup.shuffle.ordered(original.batch_sampler)}


def _made_of(held: dict[int, Any], part: Any) -> Any:
    if part is None:
        return None
    if not isinstance(part, list):
        return held[part]
    pieces = []
    for number, run in itertools.groupby(part, key=lambda reference: reference[0]):
        wanted, batch = [row for _, row in run], held[number]
        whole = wanted == list(range(rows.count(batch) or 0))
        pieces.append(batch if whole else rows.take(batch, wanted))
    return rows.join(pieces)


def _delivered(deliveries: list[_Delivery] | None = None) -> _Delivery:
    """What rank 0 has for this rank; rank 0 gives what it has for each. A collective."""
    if dist.is_initialized():
        received: list[Any] = [None]
        dist.scatter_object_list(received, deliveries, src=0)
    else:  # under XLA there is no process group, and no way to send a rank only its own
        received = broadcast_object_list([deliveries])[0][PartialState().process_index :]
    delivery: _Delivery = received[0]
    return delivery


def _received() -> Iterator[_Delivery]:
    """What rank 0 sends, to the end."""
    last = False
    while not last:
        delivery = _delivered()
        last = delivery.last
        yield delivery
