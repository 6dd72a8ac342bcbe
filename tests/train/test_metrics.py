"""Metrics over all ranks: every sample once, in order, for every way of dealing data out."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from nbstate import (
    Accelerator,
    DataLoaderConfiguration,
    GradientState,
    RankError,
    debug_launcher,
)
from nbstate.state import reset_all


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


def seen(accelerator, loader):
    """What the main process has after gathering, as tensors and as objects."""
    numbers, words = [], []
    for batch in accelerator.prepare(loader):
        gathered = accelerator.gather_for_metrics({"x": batch, "y": (batch * 10,)})
        assert torch.equal(gathered["x"] * 10, gathered["y"][0])
        numbers += gathered["x"].tolist()
        words += accelerator.gather_for_metrics([f"word {each}" for each in batch.tolist()])
    return numbers, words


def wrong_cases(config, streamed):
    """Every case of a grid in which something was lost, doubled or out of order."""
    accelerator = Accelerator(dataloader_config=config)
    wrong = []
    ranks = accelerator.num_processes
    for size in (0, 1, 5, 8, 11):
        for batch_size in (1, 4):
            for drop_last in (False, True):
                if config.split_batches and batch_size % ranks:
                    continue
                dataset = Stream(size) if streamed else range(size)
                plain = DataLoader(dataset, batch_size, drop_last=drop_last)
                expected = [int(each) for batch in plain for each in batch]
                numbers, words = seen(accelerator, plain)
                # With uneven batches the main process takes part in every round.
                if accelerator.is_main_process and (
                    numbers != expected or words != [f"word {each}" for each in expected]
                ):
                    wrong.append((size, batch_size, drop_last, numbers, words))
    return wrong


@pytest.mark.parametrize(
    ("ranks", "streamed"), [(2, False), (3, False), (4, False), (2, True), (3, True)]
)
def test_gathered_metrics_are_the_dataset(ranks, streamed):
    def check():
        wrong = []
        for dispatch in (False, True):
            for split in (False, True):
                for even in (True, False):
                    config = DataLoaderConfiguration(
                        dispatch_batches=dispatch, split_batches=split, even_batches=even
                    )
                    wrong += [(config, *case) for case in wrong_cases(config, streamed)]
                    reset_all("the next configuration")
        return wrong

    assert debug_launcher(check, num_processes=ranks)[0] == []


@pytest.mark.parametrize("dispatch", [False, True])
def test_batches_of_varying_sizes_are_repeated_at_the_end_only(dispatch):
    def gather():
        config = DataLoaderConfiguration(dispatch_batches=dispatch)
        accelerator = Accelerator(dataloader_config=config)
        batches = [[0, 1, 2], [3], [4], [5, 6, 7], [8, 9]]
        loader = accelerator.prepare(DataLoader(range(10), batch_sampler=batches))
        return [
            (batch.tolist(), accelerator.gather_for_metrics(batch).tolist()) for batch in loader
        ]

    first, second = debug_launcher(gather)
    assert [mine for mine, _ in first] == [[0, 1, 2], [4], [8, 9]]
    assert [mine for mine, _ in second] == [[3], [5, 6, 7], [0, 1]]
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [all_of_it for _, all_of_it in first + second] == whole * 2


class WholeBatches(IterableDataset):
    """Three pairs of tensors, each of which is a batch."""

    def __iter__(self):
        return ((torch.arange(4 * n, 4 * n + 4), torch.ones(4)) for n in range(3))


@pytest.mark.parametrize("streamed", [False, True])
def test_items_that_are_whole_batches_are_seen_once(streamed):
    def gather():
        config = DataLoaderConfiguration(dispatch_batches=False)
        accelerator = Accelerator(dataloader_config=config)
        dataset = WholeBatches() if streamed else list(WholeBatches())
        seen = []
        for numbers, _ in accelerator.prepare(DataLoader(dataset, batch_size=None)):
            loss = numbers.float().requires_grad_().mean()
            everywhere = accelerator.gather_for_metrics({"numbers": numbers, "loss": loss})
            seen.append([each.tolist() for each in everywhere.values()])
        return seen

    expected = [[list(range(8)), [1.5, 5.5]], [[8, 9, 10, 11], [9.5]]]
    assert list(debug_launcher(gather)) == [expected, expected]


def test_values_without_dimensions_are_gathered_from_uneven_ranks_too():
    def gather():
        accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
        loader = accelerator.prepare(DataLoader(range(3), 2))
        return [accelerator.gather_for_metrics(batch.sum()).tolist() for batch in loader]

    assert list(debug_launcher(gather)) == [[[1, 2]], [[1, 2]]]


def test_every_rank_has_the_whole_result():
    def gather():
        accelerator = Accelerator()
        return [
            accelerator.gather_for_metrics(batch).tolist()
            for batch in accelerator.prepare(DataLoader(range(9), 2))
        ]

    assert list(debug_launcher(gather)) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8]]] * 2


def test_iterable_datasets_are_dispatched_from_rank_0_only():
    class Counted(Stream):
        def __iter__(self):
            for each in range(self.size):
                self.read = each + 1
                yield {"number": each, "name": f"sample {each}"}

    def read():
        accelerator = Accelerator()
        dataset = Counted(7)
        batches = list(accelerator.prepare(DataLoader(dataset, 2)))
        names = [each["name"] for each in batches]
        return getattr(dataset, "read", 0), names, [each["number"].tolist() for each in batches]

    first, second = debug_launcher(read)
    assert (first[0], second[0]) == (7, 0)
    assert first[1] == [["sample 0", "sample 1"], ["sample 4", "sample 5"]]
    assert second[2] == [[2, 3], [6, 0]]


def test_an_error_while_rank_0_reads_is_raised_on_every_rank():
    class Broken(Stream):
        def __iter__(self):
            yield from range(4)
            raise OSError("the disk is gone")

    def read():
        with pytest.raises(OSError, match="the disk is gone"):
            list(Accelerator().prepare(DataLoader(Broken(4), 1)))
        return True

    assert list(debug_launcher(read)) == [True, True]


def test_shuffled_data_is_seen_once_by_ranks_that_were_seeded_apart():
    def read():
        accelerator = Accelerator()
        torch.manual_seed(accelerator.process_index)
        loader = accelerator.prepare(DataLoader(range(11), 2, shuffle=True))
        return [
            [int(each) for batch in loader for each in accelerator.gather_for_metrics(batch)]
            for _ in range(2)
        ]

    for first, second in debug_launcher(read):
        assert sorted(first) == sorted(second) == list(range(11))
        assert first != second


def test_a_scalar_warns_once():
    def gather():
        accelerator = Accelerator()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in accelerator.prepare(DataLoader(torch.ones(6), 1)):
                accelerator.gather_for_metrics(batch.mean())
        return [str(each.message) for each in caught]

    for messages in debug_launcher(gather):
        assert len(messages) == 1
        assert "weighted_mean" in messages[0]


def test_outside_of_a_loop_everything_is_gathered():
    def gather():
        accelerator = Accelerator()
        rank = accelerator.process_index
        return (
            accelerator.gather_for_metrics(torch.tensor([rank])).tolist(),
            accelerator.gather_for_metrics([f"rank {rank}"]),
        )

    assert debug_launcher(gather)[1] == ([0, 1], ["rank 0", "rank 1"])


def test_objects_and_tensors_of_different_shapes_are_gathered_one_for_each_sample():
    def gather():
        accelerator = Accelerator()
        boxes = []
        for batch in accelerator.prepare(DataLoader(range(5), 2)):
            mine = [torch.full((int(each), 4), int(each)) for each in batch]
            boxes += accelerator.gather_for_metrics(mine, use_gather_object=True)
        return [tuple(each.shape) for each in boxes]

    assert debug_launcher(gather)[0] == [(each, 4) for each in range(5)]


def test_weighted_mean_counts_samples_not_ranks():
    def mean():
        accelerator = Accelerator()
        rank = accelerator.process_index
        total, count = (1.0, 1) if rank == 0 else (9.0, 3)
        both = accelerator.weighted_mean({"a": torch.tensor(total), "b": torch.ones(2)}, count)
        return float(accelerator.weighted_mean(total, count)), float(both["a"]), both["b"].tolist()

    assert list(debug_launcher(mean)) == [(2.5, 2.5, [0.5, 0.5])] * 2


def test_the_operations_are_methods():
    def operate():
        accelerator = Accelerator()
        rank = accelerator.process_index
        mine = torch.tensor([rank + 1.0])
        return {
            "gather": accelerator.gather(mine).tolist(),
            "as_list": [each.tolist() for each in accelerator.gather(mine, as_list=True)],
            "gather_object": accelerator.gather_object({"rank": rank}),
            "joined": accelerator.gather_object([rank]),
            "sum": accelerator.reduce(mine).tolist(),
            "mean": accelerator.reduce(mine, "mean").tolist(),
            "broadcast": accelerator.broadcast(mine, 1).tolist(),
            "padded": accelerator.pad_across_processes(torch.ones(rank + 1)).tolist(),
        }

    first, second = debug_launcher(operate)
    assert first.pop("padded") == [1.0, 0.0]
    assert second.pop("padded") == [1.0, 1.0]
    assert (
        first
        == second
        == {
            "gather": [1.0, 2.0],
            "as_list": [[1.0], [2.0]],
            "gather_object": [{"rank": 0}, {"rank": 1}],
            "joined": [0, 1],
            "sum": [3.0],
            "mean": [1.5],
            "broadcast": [2.0],
        }
    )


def test_results_of_different_shapes_are_an_error_on_all_ranks_with_a_table():
    def mismatch():
        accelerator = Accelerator()
        accelerator.gather(torch.ones(accelerator.process_index + 1))

    with pytest.raises(RankError, match=r"the ranks do not agree") as caught:
        debug_launcher(mismatch)
    assert "(1) float32" in str(caught.value)
    assert "(2) float32" in str(caught.value)


def test_states_are_restored_when_ranks_leave_the_loop():
    def leave():
        accelerator = Accelerator()
        for _ in accelerator.prepare(DataLoader(range(9), 2)):
            break
        return GradientState().in_dataloader

    assert list(debug_launcher(leave)) == [False, False]
