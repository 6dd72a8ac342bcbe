"""Samplers of one's own in prepared dataloaders: used as they are, and told of every epoch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from nbstate import Accelerator, DataLoaderConfiguration, PartialState, debug_launcher
from nbstate.state import reset_all


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


class ByEpoch(Sampler):
    """Samples 0 to 7, rotated by the number of the epoch; a generator of its own if asked for."""

    def __init__(self, generators=()):
        self.epoch = 0
        for generator in generators:
            self.generator = generator

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 8

    def __iter__(self):
        return iter([(self.epoch + sample) % 8 for sample in range(8)])


class BatchesByEpoch(BatchSampler):
    """Batches that begin with the one of the epoch's number."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        batches = list(super().__iter__())
        return iter(batches[self.epoch :] + batches[: self.epoch])


def firsts(loader, epochs=3):
    """The samples that each epoch begins with."""
    return [list(loader)[0].tolist() for _ in range(epochs)]  # noqa: RUF015, whole epochs


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        lambda: {"sampler": ByEpoch(), "batch_size": 2},
        lambda: {"sampler": ByEpoch([None]), "batch_size": 2},
        lambda: {"batch_sampler": BatchSampler(ByEpoch(), 2, False)},
    ],
    ids=["sampler", "with a generator", "within a batch sampler"],
)
def test_samplers_hear_which_epoch_it_is(given, dispatch):
    def train():
        config = DataLoaderConfiguration(dispatch_batches=dispatch)
        loader = Accelerator(dataloader_config=config).prepare(DataLoader(range(8), **given()))
        counted = firsts(loader)
        loader.set_epoch(6)
        return counted, firsts(loader, 1)

    first, second = debug_launcher(train)
    assert first == ([[0, 1], [1, 2], [2, 3]], [[6, 7]])
    assert second == ([[2, 3], [3, 4], [4, 5]], [[0, 1]])


def test_batch_samplers_hear_it_beside_a_shuffling_sampler():
    batches = BatchesByEpoch(range(8), 2, False)
    loader = Accelerator().prepare(DataLoader(range(8), batch_sampler=batches))
    assert firsts(loader) == [[0, 1], [2, 3], [4, 5]]


def test_what_a_user_changes_in_a_sampler_between_epochs_holds():
    def train():
        sampler = WeightedRandomSampler([1.0, 0, 0, 0], 4)
        loader = Accelerator().prepare(DataLoader(range(4), 1, sampler=sampler))
        only = []
        for sample in range(3):
            loader.sampler.weights = torch.eye(4)[sample]
            only.append({batch.item() for batch in loader})
        loader.batch_sampler.sampler = RandomSampler(range(4))
        return only, [batch.item() for batch in loader], sampler.generator

    (only, some, generator), (_, others, _) = debug_launcher(train)
    assert only == [{0}, {1}, {2}]
    assert sorted(some + others) == [0, 1, 2, 3]
    assert generator is None


def test_what_a_sampler_counts_by_itself_goes_on():
    class Counting(RandomSampler):
        epochs = 0

        def __iter__(self):
            self.epochs += 1
            return itertools.repeat(self.epochs - 1, len(self))

    sampler = Counting(range(4))
    loader = Accelerator().prepare(DataLoader(range(4), 4, sampler=sampler))
    assert firsts(loader) == [[0] * 4, [1] * 4, [2] * 4]
    assert sampler.epochs == 3


class FromAFile(Sampler):
    """Draws while it is iterated; closes its index when it goes; its subclasses need a key."""

    def __init_subclass__(cls, *, key):
        cls.key = key

    def __init__(self):
        self.generator, self.index = None, list(range(32))

    def __del__(self):
        self.index.clear()

    def __len__(self):
        return 32

    def __iter__(self):
        left = self.index.copy()
        while left:
            yield left.pop(torch.randint(len(left), (), generator=self.generator))


def test_ranks_agree_on_what_a_sampler_draws_in_the_middle_of_an_epoch():
    def train():
        torch.manual_seed(PartialState().process_index)
        sampler = FromAFile()
        loader = Accelerator().prepare(DataLoader(range(32), 2, sampler=sampler))
        return torch.cat([batch for _ in range(3) for batch in loader]), sampler.generator

    (some, generator), (others, _) = debug_launcher(train)
    assert generator is None
    for one, other in zip(some.split(16), others.split(16), strict=True):
        assert sorted([*one, *other]) == list(range(32))
    assert not torch.equal(some[:16], some[16:32])


def test_a_sampler_has_its_own_generator_again_however_epochs_overlap():
    sampler = FromAFile()
    loader = Accelerator().prepare(DataLoader(range(32), 2, sampler=sampler))
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    assert sampler.generator is not None
    del first
    assert len(list(second)) == 15
    assert sampler.generator is None
