"""Splitting inputs between ranks and putting results together: properties, then real ranks."""

from __future__ import annotations

from collections import UserDict, deque

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from nbstate import PartialState, debug_launcher
from nbstate.state.splitting import Split


class Rows(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Sliceable:
    def __init__(self, values):
        self.values = list(values)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return Sliceable(self.values[index]) if isinstance(index, slice) else self.values[index]

    def __iter__(self):
        return iter(self.values)


# The same examples every time, however slow the machine is at the moment.
thorough = settings(max_examples=300, deadline=None, derandomize=True)

# What to make inputs of, and how to see the items of a part.
KINDS = {
    "list": (list, list),
    "tuple": (tuple, list),
    "range": (lambda items: range(len(items)), list),
    "str": (lambda items: bytes(items).decode(), lambda part: list(part.encode())),
    "bytes": (bytes, list),
    "tensor": (lambda items: torch.tensor(items, dtype=torch.long), lambda part: part.tolist()),
    "matrix": (
        lambda items: torch.tensor([[item, item] for item in items]).reshape(len(items), 2),
        lambda part: [int(item) for item in part[:, 1]],
    ),
    "array": (lambda items: np.array(items, dtype=int), lambda part: part.tolist()),
    "frame": (lambda items: pd.DataFrame({"x": items}), lambda part: list(part["x"])),
    "series": (lambda items: pd.Series(items, dtype=int), list),
    "datasets": (
        lambda items: datasets.Dataset.from_dict({"x": items}),
        lambda part: [int(row["x"]) for row in part],
    ),
    "torch dataset": (
        lambda items: Rows(len(items)),
        lambda part: [part[i] for i in range(len(part))],
    ),
    "subset": (
        lambda items: Subset(Rows(100), items),
        lambda part: [part[i] for i in range(len(part))],
    ),
    "own class": (Sliceable, list),
    "iterator": (iter, list),
    "generator": (lambda items: (item for item in items), list),
    "dict": (
        lambda items: {"a": list(items), "b": {"c": torch.tensor(items, dtype=torch.long)}},
        lambda part: part["a"] if part["a"] == part["b"]["c"].tolist() else None,
    ),
    "mapping": (lambda items: UserDict(a=tuple(items)), lambda part: list(part["a"])),
}  # fmt: skip


def joined(parts):
    return [item for part in parts for item in part]


def dealt(make, items, world_size, *, padded):
    splits = [Split(rank, world_size, padded) for rank in range(world_size)]
    return splits, [split.part_of(make(items)) for split in splits]


@thorough
@given(
    kind=st.sampled_from(sorted(KINDS)),
    length=st.integers(0, 40),
    world_size=st.integers(1, 8),
)
def test_the_parts_joined_are_the_input_without_repeats_and_even(kind, length, world_size):
    make, seen = KINDS[kind]
    items = list(range(length))
    splits, parts = dealt(make, items, world_size, padded=False)

    shown = [seen(part) for part in parts]

    lengths = [len(each) for each in shown]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(joined(shown)) == items
    if not splits[0].dealt:
        assert joined(shown) == items
    assert splits[0].join([[10 * item for item in each] for each in shown]) == [
        10 * item for item in items
    ]


@thorough
@given(
    kind=st.sampled_from(sorted(KINDS)),
    length=st.integers(0, 40),
    world_size=st.integers(1, 8),
)
def test_padding_repeats_the_last_item_until_all_are_equal_and_is_dropped(kind, length, world_size):
    make, seen = KINDS[kind]
    items = list(range(length))
    splits, parts = dealt(make, items, world_size, padded=True)

    shown = [seen(part) for part in parts]

    assert len({len(each) for each in shown}) == 1
    assert len({type(part) for part in parts}) == 1
    extra = len(shown[0]) * world_size - length
    assert 0 <= extra < world_size
    assert sorted(joined(shown)) == items + [length - 1] * extra
    assert splits[0].join(shown) == items


@thorough
@given(length=st.integers(0, 12), world_size=st.integers(1, 4), padded=st.booleans())
def test_results_come_back_in_the_kind_they_were_given(length, world_size, padded):
    items = torch.arange(length)
    splits, parts = dealt(lambda _: items, None, world_size, padded=padded)

    assert torch.equal(splits[0].join([part * 2 for part in parts]), items * 2)
    assert splits[0].join([tuple(part.tolist()) for part in parts]) == tuple(items.tolist())
    by_key = splits[0].join([{"x": part.numpy(), "y": part.tolist()} for part in parts])
    assert by_key["x"].tolist() == by_key["y"] == items.tolist()


def test_inputs_are_never_changed():
    inputs = {"a": [1, 2, 3], "b": (4, 5, 6)}

    for padded in (False, True):
        dealt(lambda _: inputs, None, 2, padded=padded)

    assert inputs == {"a": [1, 2, 3], "b": (4, 5, 6)}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({1, 2, 3}, "set has no order"),
        (frozenset("abc"), "frozenset has no order"),
        ({"a": {1, 2}}, "'a': a set"),
        (7, "int cannot be split"),
        (None, "NoneType cannot be split"),
        (torch.tensor(1.0), "Tensor cannot be split"),
        (np.array(1.0), "ndarray cannot be split"),
        (deque([1, 2, 3]), "deque cannot be split"),
        ({"a": 1}.values(), "dict_values cannot be split"),
        (type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(())})(), "iter"),
    ],
)
def test_what_has_no_order_or_length_is_refused_also_by_one_process(inputs, told, world_size):
    with pytest.raises(TypeError, match=told):
        Split(0, world_size, padded=False).part_of(inputs)


def test_unequal_values_of_a_dict_are_named_with_their_lengths():
    with pytest.raises(ValueError, match="'a': 2, 'b': 3"):
        Split(0, 2, padded=False).part_of({"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(ValueError, match="'x': 1, 'y': 2"):
        Split(0, 2, padded=False).part_of({"a": {"x": [1], "y": [1, 2]}})


def test_a_part_of_a_subset_is_a_subset_of_the_same_data():
    data = TensorDataset(torch.arange(10))

    part = Split(1, 2, padded=False).part_of(Subset(data, [8, 6, 4, 2]))

    assert part.dataset is data
    assert part.indices == [4, 2]


def test_results_that_are_too_many_or_too_few_name_the_rank():
    split = Split(0, 2, padded=False)
    split.part_of([1, 2, 3])

    with pytest.raises(ValueError, match="rank 1 had 1 and gave 2"):
        split.join([[1, 2], [3, 3]])


def test_in_one_process_the_part_is_the_whole():
    state = PartialState()
    with state.split_between_processes([1, 2, 3]) as part:
        assert part == [1, 2, 3]
        assert state.gather_in_order([item * 2 for item in part]) == [2, 4, 6]
    with pytest.raises(RuntimeError, match="inside that `with` block"):
        state.gather_in_order([])


@pytest.mark.parametrize("world_size", [2, 3])
def test_real_ranks_split_and_gather_tensors_padding_and_all(world_size):
    def work():
        state = PartialState()
        told = []
        for length in (0, 1, 2, 5):
            prompts = torch.arange(length)
            with state.split_between_processes(prompts, apply_padding=True) as part:
                told.append((len(part), state.gather_in_order(part * 10).tolist()))
            with state.split_between_processes(iter(range(length))) as part:
                told.append(state.gather_in_order([item * 10 for item in part]))
            with state.split_between_processes({"x": list(range(length))}) as part:
                told.append(state.gather_in_order({"x": part["x"], "n": part["x"]})["n"])
        return told

    results = debug_launcher(work, num_processes=world_size)

    expected = []
    for length in (0, 1, 2, 5):
        tens = [10 * item for item in range(length)]
        expected += [(-(-length // world_size), tens), tens, list(range(length))]
    assert list(results) == [expected] * world_size


def test_gathered_results_carry_no_gradients_and_lie_where_they_lay():
    def work():
        state = PartialState()
        weight = torch.ones(1, requires_grad=True)
        with state.split_between_processes(torch.arange(3.0)) as part:
            whole = state.gather_in_order(weight * part)
            keyed = state.gather_in_order({"y": weight * part})["y"]
            listed = state.gather_in_order([weight * item for item in part])
        return whole, keyed, torch.stack(listed).reshape(-1)

    for results in debug_launcher(work):
        for each in results:
            assert each.tolist() == [0.0, 1.0, 2.0]
            assert each.requires_grad is False
            assert each.device.type == "cpu"


def test_splits_may_be_nested():
    def work():
        state = PartialState()
        with state.split_between_processes(["a", "b", "c"]) as letters:
            with state.split_between_processes(range(4)) as numbers:
                inner = state.gather_in_order(list(numbers))
            return inner, state.gather_in_order(letters)

    assert list(debug_launcher(work)) == [([0, 1, 2, 3], ["a", "b", "c"])] * 2


def test_a_wrong_number_of_results_is_an_error_on_every_rank():
    def work():
        state = PartialState()
        with state.split_between_processes([1, 2, 3, 4]) as part:
            results = part[: 2 - state.process_index]
            with pytest.raises(ValueError, match="rank 1 had 2 and gave 1"):
                state.gather_in_order(results)

    debug_launcher(work)
