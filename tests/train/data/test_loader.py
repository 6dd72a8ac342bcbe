"""Prepared dataloaders in one process: what they yield, and what GradientState is told."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    StackDataset,
)

from nbstate.plugins import DataLoaderConfiguration
from nbstate.state import GradientState, reset_all
from nbstate.train import skip_first_batches
from nbstate.train.data import DataPlace, prepare_data_loader

EVEN = DataLoaderConfiguration()
UNEVEN = DataLoaderConfiguration(even_batches=False)
READ_BY_ALL = DataLoaderConfiguration(dispatch_batches=False)


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        step, start = (1, 0) if worker is None else (worker.num_workers, worker.id)
        return iter(range(start, self.size, step))


def prepared(loader, rank=0, ranks=1, config=EVEN):
    return prepare_data_loader(loader, DataPlace(rank, ranks, tuple(range(ranks))), config)


def together(make, ranks, config=EVEN):
    """What all ranks see for real, in the order of rounds and ranks, as gathering puts it."""
    seen = []
    for rank in range(ranks):
        loader = prepared(make(), rank, ranks, config)
        for number, batch in enumerate(loader):
            real = batch[: loader.round.real[rank]]
            seen += [((number, rank, row), int(each)) for row, each in enumerate(real)]
    return [value for _, value in sorted(seen)]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 40),
    batch_size=st.integers(1, 7),
    ranks=st.integers(1, 4),
    even=st.booleans(),
    drop_last=st.booleans(),
    streamed=st.booleans(),
)
def test_ranks_see_what_a_plain_dataloader_gives(
    size, batch_size, ranks, even, drop_last, streamed
):
    dataset = Stream(size) if streamed else range(size)

    def make():
        return DataLoader(dataset, batch_size, drop_last=drop_last)

    config = DataLoaderConfiguration(even_batches=even, dispatch_batches=False)
    assert together(make, ranks, config) == [int(each) for batch in make() for each in batch]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_read_ahead_without_mixing_rounds_up(workers):
    for dataset in (range(23), Stream(23)):
        seen = together(lambda d=dataset: DataLoader(d, 3, num_workers=workers), 2, READ_BY_ALL)
        assert sorted(seen) == list(range(23))


def test_split_batches_cuts_each_batch():
    config = DataLoaderConfiguration(split_batches=True)
    batches = [
        [batch.tolist() for batch in prepared(DataLoader(range(10), 4), rank, 2, config)]
        for rank in range(2)
    ]
    assert batches == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]


def test_split_batches_refuses_a_batch_size_that_does_not_divide():
    with pytest.raises(ValueError, match=r"batch_size=3 is no multiple of 2"):
        prepared(DataLoader(range(10), 3), 0, 2, DataLoaderConfiguration(split_batches=True))


def test_a_distributed_sampler_is_refused_as_it_deals_out_already():
    sampler = DistributedSampler(range(10), num_replicas=2, rank=0)
    with pytest.raises(ValueError, match=r"DistributedSampler.*leave the sampler out"):
        prepared(DataLoader(range(10), 2, sampler=sampler), 0, 2)


def test_batch_samplers_of_ones_own_and_samplers_of_batches_are_dealt_out():
    lists = [[0], [1, 2, 3], [4, 5]]
    assert together(lambda: DataLoader(range(6), batch_sampler=lists), 2) == list(range(6))
    indexed = torch.arange(10)
    sampler = BatchSampler(SequentialSampler(range(10)), 4, False)
    assert together(lambda: DataLoader(indexed, sampler=sampler, batch_size=None), 2) == list(
        range(10)
    )


def test_the_last_batch_is_known_as_the_last_and_so_is_its_padding():
    state = GradientState()
    loader = prepared(DataLoader(range(10), 4), 0, 2)
    assert (state.end_of_dataloader, state.remainder, state.active_dataloader) == (False, -1, None)
    told = [(state.end_of_dataloader, state.remainder) for _ in loader]
    assert told == [(False, 0), (True, 6)]
    assert (state.end_of_dataloader, state.remainder, state.active_dataloader) == (False, -1, None)


def test_an_empty_dataset_yields_nothing_and_leaves_no_trace():
    assert list(prepared(DataLoader([]), 0, 2)) == []
    assert not GradientState().in_dataloader


@pytest.mark.parametrize("leave", ["break", "return", "raise", "collect"])
def test_leaving_an_inner_loop_early_restores_the_outer_loader(leave):
    state = GradientState()
    outer, inner = prepared(DataLoader(range(4))), prepared(DataLoader(range(9)))

    def inner_loop():
        for _ in inner:
            assert state.active_dataloader is inner
            if leave == "break":
                break
            if leave == "return":
                return
            if leave == "raise":
                raise KeyError

    for _ in outer:
        if leave == "collect":
            iterator = iter(inner)
            next(iterator)
            del iterator
            gc.collect()
        elif leave == "raise":
            with pytest.raises(KeyError):
                inner_loop()
        else:
            inner_loop()
        assert state.active_dataloader is outer
    assert not state.in_dataloader


def test_a_dropped_loader_is_collected():
    loader = prepared(DataLoader(range(4)))
    list(loader)
    gone = weakref.ref(loader)
    del loader
    assert gone() is None


def test_ranks_shuffle_alike_and_every_epoch_differs():
    def epochs(rank, config):
        torch.manual_seed(3)
        loader = prepared(DataLoader(range(12), 2, shuffle=True), rank, 2, config)
        return [[each for batch in loader for each in batch.tolist()] for _ in range(3)]

    for config in (EVEN, DataLoaderConfiguration(use_seedable_sampler=True)):
        first, second = epochs(0, config), epochs(1, config)
        for one, other in zip(first, second, strict=True):
            assert sorted(one + other) == list(range(12))
        assert first[0] != first[1] != first[2]


def test_leaving_an_epoch_early_on_one_rank_does_not_part_the_ranks_orders():
    def second_epoch(rank, stop):
        loader = prepared(
            DataLoader(range(12), 2, shuffle=True, generator=torch.Generator().manual_seed(1)),
            rank,
            2,
            DataLoaderConfiguration(use_seedable_sampler=True),
        )
        next(iter(loader)) if stop else list(loader)
        return [each for batch in loader for each in batch.tolist()]

    assert sorted(second_epoch(0, stop=True) + second_epoch(1, stop=False)) == list(range(12))


def test_a_seedable_sampler_repeats_an_epoch_by_its_number():
    def epoch(number, seed):
        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=seed)
        loader = prepared(DataLoader(range(20), 4, shuffle=True), config=config)
        loader.set_epoch(number)
        return torch.cat(list(loader)).tolist()

    assert epoch(3, 1) == epoch(3, 1)
    assert epoch(3, 1) != epoch(4, 1)
    assert epoch(3, 1) != epoch(3, 2)


def test_set_epoch_reaches_datasets_that_shuffle_by_it():
    class Shifted(Stream):
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter(range(self.epoch, self.epoch + 4))

    loader = prepared(DataLoader(Shifted(4), 4))
    loader.set_epoch(7)
    assert next(iter(loader)).tolist() == [7, 8, 9, 10]


def test_the_users_dataloader_and_its_sampler_stay_as_they_are():
    original = DataLoader(range(8), 2, shuffle=True)
    prepared(original)
    assert original.sampler.generator is None
    assert sorted(torch.cat(list(original)).tolist()) == list(range(8))


def test_attributes_of_the_original_are_at_hand():
    dataset = range(10)
    loader = prepared(DataLoader(dataset, 2), 0, 2)
    assert loader.dataset is dataset
    assert (loader.batch_size, loader.total_batch_size, loader.total_dataset_length) == (2, 4, 10)
    assert len(loader) == 3
    with pytest.raises(AttributeError, match="nonsense"):
        _ = loader.nonsense


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_first_batches_can_be_skipped(ranks):
    for rank, skip in itertools.product(range(ranks), range(6)):
        whole = [batch.tolist() for batch in prepared(DataLoader(range(20), 3), rank, ranks)]
        shorter = skip_first_batches(prepared(DataLoader(range(20), 3), rank, ranks), skip)
        assert [batch.tolist() for batch in shorter] == whole[skip:]
        assert len(shorter) == len(whole[skip:])


@pytest.mark.parametrize("make", [prepared, lambda loader: loader], ids=["prepared", "plain"])
@pytest.mark.parametrize(
    "batching", [{"batch_size": 2}, {"batch_size": None, "sampler": [0, *range(1, 8, 2), 9]}]
)
def test_skipped_samples_are_not_read(make, batching):
    class Counting(StackDataset):
        read = 0

        def __getitem__(self, index):
            type(self).read += 1
            return super().__getitem__(index)

        __getitems__ = None

    shorter = skip_first_batches(make(DataLoader(Counting(torch.arange(10)), **batching)), 4)
    batches = [batch[0].tolist() for batch in shorter]
    assert batches == ([[8, 9]] if batching["batch_size"] else [7, 9])
    assert len(shorter) == len(batches)
    assert Counting.read == 2


def test_skipping_leaves_the_order_of_a_plain_dataloader_as_it_is():
    def order(skip):
        loader = DataLoader(range(9), 2, shuffle=True, generator=torch.Generator().manual_seed(5))
        return [batch.tolist() for batch in skip_first_batches(loader, skip)]

    assert order(3) == order(0)[3:]


def test_a_dataloader_that_skips_can_be_prepared():
    def own(rank):
        torch.manual_seed(7)
        shorter = skip_first_batches(DataLoader(range(11), 2, shuffle=True), 2)
        loader = prepared(skip_first_batches(shorter, 1), rank, 2)
        return [(batch.tolist(), loader.round.real[rank]) for batch in loader]

    batches = [*own(0), *own(1)]
    assert [len(batch) for batch, _ in batches] == [2] * 4
    real = [sample for batch, count in batches for sample in batch[:count]]
    assert len(real) == len(set(real)) == 5


def test_streams_and_plain_dataloaders_skip_too():
    stream = skip_first_batches(prepared(DataLoader(Stream(9), 2), 1, 2, READ_BY_ALL), 1)
    assert [batch.tolist() for batch in stream] == [[6, 7], [1, 2]]
    plain = skip_first_batches(dataloader=DataLoader(Stream(5), 2), num_batches=2)
    assert [batch.tolist() for batch in plain] == [[4]]
    assert len(skip_first_batches([1, 2, 3], 2)) == 1


def test_a_dataloader_with_an_iteration_of_its_own_keeps_it():
    class Doubled(DataLoader):
        def __iter__(self):
            return (2 * batch for batch in super().__iter__())

    assert [batch.tolist() for batch in skip_first_batches(Doubled(range(5), 2), 1)] == [
        [4, 6],
        [8],
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_loader_goes_on_where_a_saved_one_stood(streamed):
    def make(rank, ranks):
        torch.manual_seed(rank + 10)
        dataset = DataLoader(Stream(30), 2) if streamed else DataLoader(range(30), 2, shuffle=True)
        return prepared(dataset, rank, ranks, READ_BY_ALL)

    loader = make(0, 1)
    list(loader)
    before = []
    for batch in loader:
        before.append(batch.tolist())
        if loader.number == 7:
            saved = loader.state_dict()
            break
    resumed = make(0, 1)
    resumed.load_state_dict(saved)
    after = [batch.tolist() for batch in resumed]
    assert sorted(itertools.chain(*before, *after)) == list(range(30))
    assert resumed.epoch == 1

    # On another number of ranks the rest is dealt out among them.
    others = [make(rank, 2) for rank in range(2)]
    dealt = []
    for rank, other in enumerate(others):
        other.load_state_dict(saved)
        for batch in other:
            dealt += batch[: other.round.real[rank]].tolist()
    assert sorted(dealt) == sorted(itertools.chain(*after))


def test_after_a_finished_epoch_the_next_one_is_resumed():
    loader = prepared(DataLoader(range(10), 2, shuffle=True))
    list(loader)
    resumed = prepared(DataLoader(range(10), 2, shuffle=True))
    resumed.load_state_dict(loader.state_dict())
    assert torch.equal(torch.cat(list(resumed)), torch.cat(list(loader)))
