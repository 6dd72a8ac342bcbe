"""Checkpoints of whole models, loaded into sharded ones."""

from __future__ import annotations

import pytest
import torch

from nbstate import Accelerator, FullyShardedDataParallelPlugin, debug_launcher
from nbstate.state import reset_all
from tests.train.ranks import close, loader, loss_of, mlp, weights


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


@pytest.mark.parametrize("kept", [2, 0], ids=["stepped", "before the first step"])
@pytest.mark.parametrize("saved", [None, 1, 2], ids=["alone", "fsdp of one", "fsdp of two"])
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_shards_go_on_as_the_whole_model_would(momentum, saved, kept, tmp_path):
    def train(plugin, steps, load=False):
        reset_all("again")
        accelerator = Accelerator(fsdp_plugin=plugin)
        model = mlp()
        # Of other groups, in another order than that of the model.
        groups = [{"params": model[2].parameters(), "lr": 0.3}, {"params": model[0].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=momentum)
        model, optimizer = accelerator.prepare(model, optimizer)
        if load:
            accelerator.load_state(tmp_path / "c")
        for _ in range(steps):
            accelerator.backward(loss_of(model, next(iter(loader(8, 8)))))
            optimizer.step()
            optimizer.zero_grad()
        if not load:
            accelerator.save_state(tmp_path / "c")
        return weights(accelerator.unwrap_model(model))

    def save():
        plugin = FullyShardedDataParallelPlugin(state_dict_type="full_state_dict")
        train(plugin if saved else None, kept)

    save() if saved != 2 else debug_launcher(save)
    shards = debug_launcher(train, (FullyShardedDataParallelPlugin(), 3, True))
    whole = train(None, 3, load=True)
    for got in shards:
        assert close(got, whole)
