"""Operations over nested structures, on real ranks."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch

from nbstate import (
    DistributedOperationException,
    PartialState,
    broadcast,
    broadcast_object_list,
    debug_launcher,
    gather,
    gather_in_order,
    gather_object,
    pad_across_processes,
    reduce,
    send_to_device,
)


class Pair(NamedTuple):
    first: object
    second: object


@dataclass
class Batch:
    x: torch.Tensor
    name: str = "batch"


@dataclass
class Rows:
    x: torch.Tensor
    y: list[torch.Tensor]


def rank() -> int:
    return PartialState().process_index


def on_ranks(function, world_size=2):
    """Every rank's value; those that must be equal on all ranks are checked by `on_all`."""
    return list(debug_launcher(function, num_processes=world_size))


def on_all(function, world_size=2):
    """The one value that all ranks returned."""
    first, *others = on_ranks(function, world_size)
    assert all(repr(other) == repr(first) for other in others), others
    return first


# -- gather --------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_gather_joins_in_rank_order(world_size):
    gathered = on_all(lambda: gather(torch.tensor([[rank(), 7]])), world_size)

    assert gathered.tolist() == [[index, 7] for index in range(world_size)]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_gather_keeps_the_type(dtype):
    gathered = on_all(lambda: gather(torch.tensor([rank()]).to(dtype)))

    assert gathered.dtype is dtype
    assert gathered.tolist() == [0, 1]


def test_gather_in_structures_of_every_kind():
    def work():
        here = torch.tensor(rank())
        return gather(
            [
                (here,),
                {"a": here, "b": OrderedDict(c=here)},
                Pair(here, [here]),
                Rows(here, [here, here]),
                UserDict(x=here),
            ]
        )

    in_tuple, in_dict, pair, rows, user = on_all(work)

    both = torch.tensor([0, 1])
    assert torch.equal(in_tuple[0], both)
    assert torch.equal(in_dict["b"]["c"], both)
    assert isinstance(in_dict["b"], OrderedDict)
    assert torch.equal(pair.second[0], both)
    assert torch.equal(rows.y[1], both)
    assert isinstance(rows, Rows)
    assert isinstance(user, UserDict)
    assert torch.equal(user["x"], both)


def test_gather_takes_no_gradient_along_and_any_memory_layout():
    def work():
        x = torch.arange(6.0, requires_grad=True).reshape(2, 3).T
        return gather(x)

    gathered = on_all(work)

    assert gathered.requires_grad is False
    assert gathered.shape == (6, 2)


def test_gather_as_list_takes_different_shapes():
    gathered = on_all(lambda: gather({"x": torch.full((rank(), 2), rank())}, as_list=True), 3)

    assert [each.tolist() for each in gathered["x"]] == [[], [[1, 1]], [[2, 2], [2, 2]]]


@pytest.mark.parametrize(
    ("data", "where"), [(7, "got int"), ({"a": [torch.ones(1), "text"]}, "got str at ['a'][1]")]
)
def test_gather_refuses_what_is_no_tensor_and_says_where(data, where):
    with pytest.raises(TypeError, match="gather_object") as caught:
        gather(data)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("value", "flatten", "expected"),
    [
        (lambda: {f"k{rank()}": 1}, True, [{"k0": 1}, {"k1": 1}]),
        (lambda: 7, True, [7, 7]),
        (lambda: [rank(), "x"], True, [0, "x", 1, "x"]),
        (lambda: [[rank()]], True, [[0], [1]]),
        (lambda: [rank()], False, [[0], [1]]),
        (lambda: [1] if rank() else 2, True, [2, [1]]),
        (lambda: (rank(), 1), True, [(0, 1), (1, 1)]),
        (lambda: None, True, [None, None]),
    ],
)
def test_gather_object(value, flatten, expected):
    assert on_all(lambda: gather_object(value(), flatten=flatten)) == expected


def test_gather_object_in_one_process():
    assert gather_object(["a"]) == ["a"]
    assert gather_object(7) == [7]
    assert gather_object(["a"], flatten=False) == [["a"]]


def test_gather_in_order_is_the_states():
    def work():
        with PartialState().split_between_processes([1, 2, 3]) as part:
            return gather_in_order([10 * item for item in part])

    assert on_all(work) == [10, 20, 30]


# -- broadcast, reduce, pad ----------------------------------------------------------------------


def test_broadcast_changes_nothing_of_the_input():
    def work():
        mine = {"x": torch.full((2,), rank()), "y": [torch.ones(1, dtype=torch.bool)]}
        sent = broadcast(mine, from_process=1)
        return sent["x"].tolist(), sent["y"][0].item(), mine["x"].tolist()

    assert on_ranks(work) == [([1, 1], True, [0, 0]), ([1, 1], True, [1, 1])]


def test_broadcast_object_list_fills_the_list():
    def work():
        objects = [{"rank": rank()}, "x" * rank()]
        assert broadcast_object_list(objects, from_process=1) is objects
        return objects

    assert on_all(work) == [{"rank": 1}, "x"]


@pytest.mark.parametrize("function", [broadcast, broadcast_object_list])
def test_a_rank_to_send_from_that_is_not_there(function):
    with pytest.raises(ValueError, match="from_process=3 must be a rank: 0 to 0"):
        function([torch.ones(1)], from_process=3)


@pytest.mark.parametrize(
    ("reduction", "scale", "expected"),
    [("mean", 1.0, [0.5, 2.0]), ("sum", 1.0, [1, 4]), ("sum", 0.5, [0.5, 2.0])],
)
def test_reduce(reduction, scale, expected):
    reduced = on_all(lambda: reduce([torch.tensor([rank(), 2])], reduction, scale))

    assert reduced[0].tolist() == expected


def test_reduce_takes_the_mean_unless_told_and_changes_no_input():
    def work():
        mine = torch.tensor([float(rank())])
        return reduce(mine).item(), reduce(mine, "none", 3.0).item(), mine.item()

    assert on_ranks(work) == [(0.5, 0.0, 0.0), (0.5, 3.0, 1.0)]


def test_an_unknown_reduction_names_the_choices():
    with pytest.raises(ValueError, match="'max' must be 'mean', 'sum' or 'none'"):
        reduce(torch.ones(1), "max")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[[1], [0]], [[1], [1]]]),
        ({"pad_index": 9, "pad_first": True}, [[[9], [1]], [[1], [1]]]),
        ({"dim": 1}, [[[1]], [[1], [1]]]),
        ({"dim": -2}, [[[1], [0]], [[1], [1]]]),
    ],
)
def test_pad_across_processes(options, expected):
    def work():
        padded = pad_across_processes(
            (torch.ones(rank() + 1, 1, dtype=torch.int), "name"), **options
        )
        assert padded[1] == "name"
        return padded[0].tolist()

    assert on_ranks(work) == expected


def test_tensors_without_that_dimension_are_left_alone():
    assert pad_across_processes(torch.tensor(1), dim=0).item() == 1


# -- send_to_device ------------------------------------------------------------------------------


class Encoding(UserDict):
    """As a tokenizer's: a mapping with a `to` of its own that takes only the device."""

    def to(self, device):
        return Encoding({key: value.to(device) for key, value in self.items()})


def test_send_to_device_moves_what_can_move():
    data = [Batch(torch.ones(1)), Encoding(x=torch.ones(1)), Pair(torch.ones(1), "text"), None]

    batch, encoding, pair, nothing = send_to_device(data, "meta")

    assert (batch.x.device.type, batch.name) == ("meta", "batch")
    assert isinstance(encoding, Encoding)
    assert encoding["x"].device.type == "meta"
    assert pair.first.device.type == "meta"
    assert (pair.second, nothing) == ("text", None)
    assert data[0].x.device.type == "cpu"


@pytest.mark.parametrize("keys", ["labels", ["labels", "other"]])
def test_keys_can_be_left_where_they_are(keys):
    data = {"x": torch.ones(1), "labels": torch.ones(1), "deep": [{"labels": torch.ones(1)}]}

    moved = send_to_device(data, "meta", skip_keys=keys)

    assert moved["x"].device.type == "meta"
    assert moved["labels"].device.type == "cpu"
    assert moved["deep"][0]["labels"].device.type == "cpu"


# -- debug mode ----------------------------------------------------------------------------------


def caught(function):
    """What the exception says that all ranks raise; ranks go on in step afterwards."""

    def work():
        with pytest.raises(DistributedOperationException) as raised:
            function()
        assert gather(torch.tensor([rank()])).tolist() == [0, 1]
        return str(raised.value)

    return on_all(work).splitlines()


def test_different_shapes_are_a_table_on_all_ranks():
    head, columns, first, second, advice = caught(lambda: gather({"x": torch.ones(rank() + 1, 3)}))

    assert head == "the ranks do not agree:"
    assert columns.split() == ["rank", "operation", "tensors", "called"]
    assert first.startswith("0     gather     ['x'] (1, 3) float32  at ")
    assert second.startswith("1     gather     ['x'] (2, 3) float32  at ")
    assert __file__ in first
    assert "pad_across_processes" in advice


def test_different_types_and_structures():
    told = "\n".join(caught(lambda: reduce(torch.ones(1, dtype=(torch.int, torch.long)[rank()]))))
    assert "int32" in told
    assert "int64" in told
    told = "\n".join(caught(lambda: gather([torch.ones(1)] * (rank() + 1))))
    assert "[1] (1) float32" in told


def test_different_operations():
    told = caught(lambda: gather(torch.ones(1)) if rank() else reduce(torch.ones(1)))

    assert told[2].split()[:2] == ["0", "reduce"]
    assert told[3].split()[:2] == ["1", "gather"]
    assert told[-1] == "every rank must call the same operations in the same order"


@pytest.mark.slow
def test_a_rank_that_calls_alone_is_named_and_ends_at_the_groups_timeout(capfd):
    def work():
        state = PartialState(timeout=timedelta(seconds=6))
        if state.is_main_process:
            with pytest.raises(DistributedOperationException, match=r"gather at .*: rank 0 waited"):
                gather(torch.ones(1))
        state.wait_for_everyone()

    debug_launcher(work)

    out = capfd.readouterr()
    assert "rank 0 in gather at " in out.out + out.err
    assert "is waiting for rank 1 since 5 s" in out.out + out.err


def test_debug_mode_can_be_switched_off():
    def work():
        PartialState().debug = False
        return gather([torch.tensor([rank()])] if rank() else (torch.tensor([rank()]),))[0].tolist()

    assert on_all(work) == [0, 1]
