"""Objects on their way between ranks."""

from __future__ import annotations

import pickle

import pytest
import torch

from nbstate.state import sending
from nbstate.state.rank_only import Outcome

CPU = torch.device("cpu")


class LeftAnAccelerator:
    """Pickles as a tensor does whose device is not the CPU."""

    def __reduce__(self):
        return sending._on_own_device, (torch.arange(3),)


def test_what_left_an_accelerator_arrives_on_the_receivers_own_device():
    payload = sending.dumps({"x": [LeftAnAccelerator()], "y": torch.ones(1)})

    arrived = sending.loads(payload, torch.device("meta"))

    assert arrived["x"][0].device.type == "meta"
    assert arrived["y"].device.type == "cpu"
    assert sending.loads(payload, CPU)["x"][0].tolist() == [0, 1, 2]


def test_gradients_stay_behind_and_nothing_else_is_lost():
    weight = torch.nn.Parameter(torch.ones(2))
    shared = torch.zeros(3)

    arrived = sending.loads(sending.dumps([weight * 2, weight, shared, shared]), CPU)

    assert [each.requires_grad for each in arrived] == [False] * 4
    assert arrived[0].tolist() == [2.0, 2.0]
    assert arrived[2] is arrived[3]
    assert weight.requires_grad


def test_an_outcome_that_cannot_be_sent_is_an_error_that_can():
    arrived = sending.loads(sending.outcome_dumps(Outcome(value=lambda: None)), CPU)

    assert "cannot be sent" in str(arrived.error)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        sending.dumps(lambda: None)
