"""Every size, batch size, number of ranks and flag: nothing lost, nothing twice, in order."""

from __future__ import annotations

import itertools

import pytest
from torch.utils.data import BatchSampler

from nbstate.train.data import deal
from nbstate.train.data.rounds import count_batches

SIZES = range(41)
BATCH_SIZES = range(1, 8)
RANKS = range(1, 5)
FLAGS = (False, True)


def real_samples(round_):
    """What is no copy, in the order of ranks."""
    return [
        sample
        for part, real in zip(round_.parts, round_.facts.real, strict=True)
        for sample in (part or [])[:real]
    ]


@pytest.mark.parametrize("split", FLAGS)
@pytest.mark.parametrize("even", FLAGS)
@pytest.mark.parametrize("drop_last", FLAGS)
def test_ranks_together_see_what_one_process_sees(split, even, drop_last):
    for size, batch_size, ranks in itertools.product(SIZES, BATCH_SIZES, RANKS):
        batches = list(BatchSampler(range(size), batch_size, drop_last))
        rounds = list(deal(batches, ranks, batch_size=batch_size, split=split, even=even))
        seen = [sample for round_ in rounds for sample in real_samples(round_)]
        assert seen == list(itertools.chain(*batches)), (size, batch_size, ranks)
        assert sum(round_.facts.batches for round_ in rounds) == len(batches)


@pytest.mark.parametrize("split", FLAGS)
@pytest.mark.parametrize("drop_last", FLAGS)
def test_even_rounds_give_every_rank_as_many_samples(split, drop_last):
    for size, batch_size, ranks in itertools.product(SIZES, BATCH_SIZES, range(2, 5)):
        if split and batch_size % ranks:
            continue  # no equal parts; prepare() refuses it
        batches = BatchSampler(range(size), batch_size, drop_last)
        rounds = list(deal(batches, ranks, batch_size=batch_size, split=split))
        each = batch_size // ranks if split else batch_size
        for round_ in rounds:
            assert [len(part) for part in round_.parts] == [each] * ranks
            assert round_.facts.even
            assert round_.facts.padding == each * ranks - sum(round_.facts.real)
        assert all(round_.facts.padding == 0 for round_ in rounds[:-1])


def test_copies_are_the_first_samples_of_the_epoch():
    *_, last = deal([[4, 1], [3, 0], [2]], ranks=2, batch_size=2)
    assert last.parts == ([2, 4], [1, 3])
    assert last.facts.real == (1, 0)


def test_a_single_rank_keeps_its_batches_as_they_are():
    parts = [round_.parts for round_ in deal([[0, 1], [2]], ranks=1, batch_size=2)]
    assert parts == [([0, 1],), ([2],)]


@pytest.mark.parametrize("batch_size", [None, 3])
def test_only_the_last_round_is_filled_where_batches_vary_in_size(batch_size):
    batches = [[0], [1, 2, 3], [4, 5], [6], [7, 8, 9], [10, 11]]
    rounds = list(deal(batches, ranks=2, batch_size=batch_size))
    assert [[len(part) for part in round_.parts] for round_ in rounds] == [[1, 3], [2, 1], [3, 3]]
    assert rounds[2].parts == ([7, 8, 9], [10, 11, 0])
    assert [sample for round_ in rounds for sample in real_samples(round_)] == list(range(12))


def test_short_batches_in_between_are_split_as_equally_as_can_be():
    rounds = deal([[0, 1], [2, 3, 4], [5], [6]], ranks=2, batch_size=4, split=True)
    assert [round_.parts for round_ in rounds] == [
        ([0], [1]),
        ([2, 3], [4]),
        ([5], [0]),  # no rank goes without
        ([6, 0], [1, 0]),
    ]


def test_batches_that_cannot_be_cut_are_repeated_whole():
    first, second = deal(["a", "b", "c"], ranks=2)
    assert first.parts == ("a", "b")
    assert second.parts == ("c", "a")
    assert second.facts.opaque
    assert second.facts.real == (1, 0)


def test_batches_that_cannot_be_cut_count_as_one_whatever_the_batch_size():
    first, second = deal([(0, 1), (2, 3), (4, 5)], ranks=2, batch_size=2, whole=True)
    assert (first.parts, second.parts) == (((0, 1), (2, 3)), ((4, 5), (0, 1)))
    assert (second.facts.sizes, second.facts.real, second.facts.padding) == ((1, 1), (1, 0), 1)


@pytest.mark.parametrize("even", FLAGS)
@pytest.mark.parametrize("split", FLAGS)
def test_rounds_after_skipped_batches_are_those_of_the_whole_epoch(split, even):
    for size, ranks in itertools.product(range(1, 30), RANKS):
        batches = list(BatchSampler(range(size), 4, False))

        def rounds(skip, batches=batches, ranks=ranks):
            return list(deal(batches, ranks, batch_size=4, split=split, even=even, skip=skip))

        whole = rounds(0)
        used = 0
        for number, round_ in enumerate(whole):
            assert rounds(used) == whole[number:]
            used += round_.facts.batches


def test_the_number_of_batches_of_each_rank_is_known_beforehand():
    for size, ranks, even in itertools.product(SIZES, RANKS, FLAGS):
        batches = list(BatchSampler(range(size), 3, False))
        rounds = list(deal(batches, ranks, batch_size=3, even=even))
        for rank in range(ranks):
            got = sum(round_.parts[rank] is not None for round_ in rounds)
            assert got == count_batches(len(batches), ranks, rank, split=False, even=even)
