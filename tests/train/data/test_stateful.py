"""Streams that keep their own position, through torchdata's StatefulDataLoader."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from nbstate import Accelerator, DataLoaderConfiguration, debug_launcher
from nbstate.state import reset_all

pytest.importorskip("torchdata.stateful_dataloader")
# torchdata 0.11 calls it, torch 2.13 has deprecated it.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")
    gc.collect()  # torchdata's loaders keep their workers until they are collected


class Stream(IterableDataset):
    """Counts what is read of it, and can go on from a position."""

    def __init__(self, size):
        self.size, self.position, self.read = size, 0, 0

    def __iter__(self):
        while self.position < self.size:
            self.position += 1
            self.read += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def prepared(dataset, dispatch):
    config = DataLoaderConfiguration(use_stateful_dataloader=True, dispatch_batches=dispatch)
    accelerator = Accelerator(dataloader_config=config)
    return accelerator, accelerator.prepare(DataLoader(dataset, 2))


# torchdata takes its time to end workers, so there is one case with them.
@pytest.mark.parametrize(("at", "workers"), [(1, 0), (3, 0), (5, 0), (3, 1)])
def test_a_stream_goes_on_from_its_own_position(at, workers):
    def batches(loader):
        return [batch.tolist() for batch in loader]

    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(dataloader_config=config)

    def make():
        dataset = Stream(10)
        return dataset, accelerator.prepare(DataLoader(dataset, 2, num_workers=workers))

    _, whole = make()
    expected = batches(whole)
    _, first = make()
    before = []
    for batch in first:
        before.append(batch.tolist())
        if first.number == at:
            saved = first.state_dict()
            break
    assert before == expected[:at]
    dataset, second = make()
    second.load_state_dict(saved)
    assert batches(second) == expected[at:]
    if workers == 0:
        assert dataset.read == 10 - 2 * at  # nothing was read again
    assert batches(second) == expected  # the next epoch is a whole one


@pytest.mark.parametrize("dispatch", [True, False])
def test_ranks_go_on_together(dispatch):
    def train():
        seen = []
        _, loader = prepared(Stream(12), dispatch)
        for batch in loader:
            seen.append(batch)
            if loader.number == 2:
                saved = loader.state_dict()
                break
        # Only the rank that reads knows the position, and saves it for all.
        saved = Accelerator().on_main_process(lambda: saved, share=True)()
        reset_all("resumed")
        dataset = Stream(12)
        _, loader = prepared(dataset, dispatch)
        loader.load_state_dict(saved)
        seen += list(loader)
        return torch.cat(seen).tolist(), dataset.read

    (first, read), (second, other) = debug_launcher(train)
    assert sorted(first + second) == list(range(12))
    assert (read, other) == ((4, 0) if dispatch else (4, 4))
