"""What other programs read: `save_model`, `save`, `get_state_dict`; and what cannot be taken out."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from nbstate import (
    Accelerator,
    FullyShardedDataParallelPlugin,
    TorchTensorParallelPlugin,
    debug_launcher,
)
from nbstate.state import reset_all
from tests.train.ranks import close, mlp

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}
LAYOUTS = {
    "ddp": dict,
    "fsdp": lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin()},
    "cut": lambda: {"torch_tp_plugin": TorchTensorParallelPlugin(tp_size=2, plan=PLAN)},
}


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight
        # A part of a larger memory.
        self.register_buffer("mask", torch.arange(12.0)[:3])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_of_any_layout_is_saved_whole(layout, tmp_path):
    def save():
        accelerator = Accelerator(**LAYOUTS[layout]())
        model = accelerator.prepare(mlp(seed=3))
        accelerator.save_model(model, tmp_path / "whole")
        return accelerator.get_state_dict(model)

    first, second = debug_launcher(save)
    model = mlp(seed=4)
    load_model(model, tmp_path / "whole" / "model.safetensors")
    assert close(model.parameters(), mlp(seed=3).parameters(), 0)
    assert close(first.values(), mlp(seed=3).state_dict().values(), 0)
    assert list(first) == list(mlp().state_dict())
    assert list(second) == (list(first) if layout == "ddp" else [])


def test_names_inside_of_the_wrapper_on_demand():
    def names():
        accelerator = Accelerator()
        model = accelerator.prepare(nn.Linear(1, 1))
        return list(accelerator.get_state_dict(model, unwrap=False))

    assert list(debug_launcher(names)) == [["module.weight", "module.bias"]] * 2


@pytest.mark.parametrize("safe", [True, False])
def test_parts_of_an_earlier_model_are_replaced_and_nothing_else(safe, tmp_path):
    accelerator = Accelerator()
    (tmp_path / "notes.txt").write_text("mine")
    accelerator.save_model(mlp(), tmp_path, 100, safe)
    assert len(list(tmp_path.iterdir())) > 3
    accelerator.save_model(Tied(), tmp_path, safe_serialization=safe)
    whole = "model.safetensors" if safe else "pytorch_model.bin"
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", whole}


@pytest.mark.parametrize("limit", [10, "10GB"])
def test_tied_weights_and_parts_of_a_memory_are_written_once(limit, tmp_path):
    model, found = Tied(), Tied()
    accelerator = Accelerator()
    for safe in (True, False):
        accelerator.save_model(model, tmp_path / str(safe), limit, safe)
        assert sum(path.stat().st_size for path in (tmp_path / str(safe)).iterdir()) < 6000
    saved = {}
    for path in (tmp_path / "True").glob("*.safetensors"):
        saved |= load_file(path)
    assert len(saved) == 2
    saved = {}
    for path in (tmp_path / "False").glob("*.bin"):
        saved |= torch.load(path)
    found.load_state_dict(saved)
    assert close(found.parameters(), model.parameters(), 0)


def test_wrong_sizes_and_places_are_named(tmp_path):
    accelerator = Accelerator()
    with pytest.raises(ValueError, match="max_shard_size='ten' must be a size such as '10GB'"):
        accelerator.save_model(mlp(), tmp_path, "ten")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file"):
        accelerator.save_model(mlp(), tmp_path / "file")
    with pytest.raises(TypeError, match=r"cannot hold \['epoch'\]; use safe_serialization=False"):
        accelerator.save({"epoch": 3}, tmp_path / "x", safe_serialization=True)


def test_save_writes_tensors_by_safetensors(tmp_path):
    Accelerator().save(mlp().state_dict(), tmp_path / "x", safe_serialization=True)
    found = load_file(tmp_path / "x")
    assert all(torch.equal(found[name], value) for name, value in mlp().state_dict().items())


def test_a_checkpoint_by_torch_save_is_loaded_again(tmp_path):
    accelerator = Accelerator()
    models = accelerator.prepare(mlp(seed=3), mlp(seed=4))
    accelerator.save_state(tmp_path / "c", safe_serialization=False)
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert {"pytorch_model.bin", "pytorch_model_1.bin"} <= names
    for model in models:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    accelerator.load_state(tmp_path / "c")
    assert close(models[1].parameters(), mlp(seed=4).parameters(), 0)


def test_hooks_write_and_read_models_in_their_own_way(tmp_path):
    accelerator = Accelerator()
    models = accelerator.prepare(mlp(seed=3), mlp(seed=4))

    def save(models, weights, output_dir):
        torch.save(weights.pop(0), f"{output_dir}/mine.pt")

    def load(models, input_dir):
        models.pop(0).load_state_dict(torch.load(f"{input_dir}/mine.pt"))

    handles = [
        accelerator.register_save_state_pre_hook(save),
        accelerator.register_load_state_pre_hook(load),
    ]
    accelerator.save_state(tmp_path / "c")
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert {"mine.pt", "model_1.safetensors"} <= names
    assert "model.safetensors" not in names
    for model in models:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    accelerator.load_state(tmp_path / "c")
    assert close(models[0].parameters(), mlp(seed=3).parameters(), 0)
    assert close(models[1].parameters(), mlp(seed=4).parameters(), 0)
    for handle in handles:
        handle.remove()
    accelerator.save_state(tmp_path / "c")
    assert (tmp_path / "c" / "model.safetensors").exists()


def test_save_writes_one_file_from_the_main_process(tmp_path):
    def save():
        accelerator = Accelerator()
        accelerator.save({"rank": accelerator.process_index}, tmp_path / "one.pt")

    debug_launcher(save)
    assert torch.load(tmp_path / "one.pt") == {"rank": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["one.pt"]
