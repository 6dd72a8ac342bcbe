"""Going on within an epoch: `load_state` by itself, and with `skip_first_batches`."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import DataLoader

from nbstate import Accelerator, DataLoaderConfiguration, debug_launcher
from nbstate.state import reset_all


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def prepared(seedable=False, window=1):
    config = DataLoaderConfiguration(use_seedable_sampler=seedable, data_seed=3)
    accelerator = Accelerator(dataloader_config=config, gradient_accumulation_steps=window)
    return accelerator, accelerator.prepare(DataLoader(range(16), 2, shuffle=True))


def seen(batches):
    return [batch.tolist() for batch in batches]


def on(ranks, function):
    return [function()] if ranks == 1 else debug_launcher(function, num_processes=ranks)


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_skipping_after_loading_goes_on_in_that_epoch_and_then_with_whole_ones(
    ranks, seedable, tmp_path
):
    def epochs():
        accelerator, loader = prepared(seedable)
        first = []
        for batch in loader:
            first.append(batch.tolist())
            if len(first) == 2:
                accelerator.save_state(tmp_path / "c")
        whole = [first[2:], seen(loader), seen(loader)]
        accelerator, loader = prepared(seedable)
        accelerator.load_state(tmp_path / "c")
        rest = seen(accelerator.skip_first_batches(loader, 2))
        return whole, [rest, seen(loader), seen(loader)]

    for whole, resumed in on(ranks, epochs):
        assert resumed == whole


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_within_a_skipping_epoch_holds_its_position(ranks, tmp_path):
    def epochs():
        first = []
        accelerator, loader = prepared()
        for batch in itertools.islice(loader, 1):
            first.append(batch.tolist())
            accelerator.save_state(tmp_path / "c")
        accelerator, loader = prepared()
        accelerator.load_state(tmp_path / "c")
        for batch in itertools.islice(accelerator.skip_first_batches(loader, 1), 2):
            first.append(batch.tolist())
            accelerator.save_state(tmp_path / "d")
        accelerator, loader = prepared()
        accelerator.load_state(tmp_path / "d")
        return first + seen(loader)

    parts = on(ranks, epochs)
    assert sorted(itertools.chain(*itertools.chain(*parts))) == list(range(16))


def test_a_checkpoint_saved_before_going_on_says_the_same(tmp_path):
    accelerator, loader = prepared()
    for _ in itertools.islice(loader, 3):
        accelerator.save_state(tmp_path / "c")
    accelerator, loader = prepared()
    accelerator.load_state(tmp_path / "c")
    accelerator.save_state(tmp_path / "d")
    wanted = seen(loader)
    accelerator, loader = prepared()
    accelerator.load_state(tmp_path / "d")
    assert seen(loader) == wanted
    assert len(wanted) == 5


def test_a_checkpoint_that_does_not_tell_a_windows_batches_goes_on_within_it(tmp_path):
    def synced(accelerator, batches):
        ends = []
        for _ in batches:
            with accelerator.accumulate():
                ends.append(accelerator.sync_gradients)
            yield ends

    accelerator, loader = prepared(window=3)
    for ends in itertools.islice(synced(accelerator, loader), 4):
        if len(ends) == 4:
            accelerator.save_state(tmp_path / "c")
    # As they were saved before windows counted batches too.
    training = torch.load(tmp_path / "c" / "training.pt", weights_only=False)
    del training["accumulation"]["batches"]
    torch.save(training, tmp_path / "c" / "training.pt")
    reset_all("again")
    accelerator, loader = prepared(window=3)
    accelerator.load_state(tmp_path / "c")
    assert list(synced(accelerator, loader))[-1] == [False, True, False, True]
