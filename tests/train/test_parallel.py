"""Every way to lay a model out trains as one process does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from nbstate import (
    Accelerator,
    DistributedType,
    FullyShardedDataParallelPlugin,
    GradScalerKwargs,
    ParallelismConfig,
    PartialState,
    TorchTensorParallelPlugin,
    debug_launcher,
)
from nbstate.state import reset_all
from tests.train.ranks import close, loader, loss_of, mlp, weights

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}
STEPS = 20


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def curve(clip=None, **layout):
    """The loss of 20 steps over 8 samples each, and the weights after them."""
    accelerator = Accelerator(**layout)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    parts = accelerator._layout.data.count
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(16, 8 // parts))
    losses = []
    while len(losses) < STEPS:
        for batch in batches:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(accelerator.reduce(loss.detach(), "mean")))
    kind = accelerator.distributed_type
    return losses, weights(accelerator.unwrap_model(model)), kind


def sizes(**given):
    return {"parallelism_config": ParallelismConfig(**{f"{k}_size": v for k, v in given.items()})}


LAYOUTS = {
    "ddp": (2, {}, DistributedType.MULTI_CPU),
    "ddp of 4, by sizes": (4, sizes(dp_replicate=4), DistributedType.MULTI_CPU),
    "fsdp": (2, {"fsdp_plugin": FullyShardedDataParallelPlugin()}, DistributedType.FSDP),
    "fsdp by layers": (
        2,
        {
            "fsdp_plugin": FullyShardedDataParallelPlugin(
                auto_wrap_policy="size_based_wrap",
                min_num_params=1,
                activation_checkpointing=True,
                cpu_ram_efficient_loading=True,
            )
        },
        DistributedType.FSDP,
    ),
    "fsdp of 4, by sizes": (4, sizes(dp_shard=4), DistributedType.FSDP),
    "hsdp": (4, sizes(dp_replicate=2, dp_shard=2), DistributedType.FSDP),
}
CUT = {
    "tp": (2, sizes(tp=2), DistributedType.TP),
    "copies of tp": (4, sizes(dp_replicate=2, tp=2), DistributedType.TP),
    "fsdp of tp": (4, sizes(dp_shard=2, tp=2), DistributedType.FSDP),
}


@pytest.mark.parametrize("clip", [None, 0.1], ids=["", "clipped"])
@pytest.mark.parametrize("name", [*LAYOUTS, *CUT])
def test_losses_and_weights_are_those_of_one_process(name, clip):
    ranks, layout, kind = (LAYOUTS | CUT)[name]
    if name in CUT:
        layout = {**layout, "torch_tp_plugin": TorchTensorParallelPlugin(plan=PLAN)}
    alone, alone_weights, _ = curve(clip)
    for losses, got, told in debug_launcher(lambda: curve(clip, **layout), num_processes=ranks):
        assert losses == pytest.approx(alone, abs=1e-5)
        assert close(got, alone_weights, 1e-5)
        assert told is kind


def test_ranks_that_share_layers_get_the_same_data():
    def see():
        accelerator = Accelerator(
            **sizes(dp_shard=2, tp=2), torch_tp_plugin=TorchTensorParallelPlugin(plan=PLAN)
        )
        seen, gathered = [], []
        for inputs, _ in accelerator.prepare(loader(6, 2)):
            seen.append(inputs)
            gathered.append(accelerator.gather_for_metrics(inputs))
        return torch.cat(seen), torch.cat(gathered)

    parts = debug_launcher(see, num_processes=4)
    whole = torch.cat([inputs for inputs, _ in loader(6, 2)])
    assert torch.equal(parts[0][0], parts[1][0])
    assert torch.equal(parts[2][0], parts[3][0])
    assert not torch.equal(parts[0][0], parts[2][0])
    for _, gathered in parts:
        assert torch.equal(gathered, whole)


def test_a_plan_of_the_models_own_is_used_and_without_any_the_error_says_how():
    def prepare():
        accelerator = Accelerator(torch_tp_plugin=TorchTensorParallelPlugin(tp_size=2))
        with pytest.raises(ValueError, match=r"tensor parallelism needs a plan for Sequential"):
            accelerator.prepare(mlp())
        model = mlp()
        model.tp_plan = PLAN
        accelerator.prepare(model)
        return tuple(model[0].weight.to_local().shape)

    assert list(debug_launcher(prepare)) == [(4, 6)] * 2


def test_a_mesh_of_ones_own_says_how_many_share_a_layer():
    def train():
        PartialState()
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        plugin = TorchTensorParallelPlugin(torch_device_mesh=mesh, plan=PLAN)
        model = Accelerator(torch_tp_plugin=plugin).prepare(mlp())
        told = []
        for wrong in ({"tp_size": 4}, {"torch_device_mesh": init_device_mesh("cpu", (2,))}):
            with pytest.raises(ValueError, match="must be") as caught:
                TorchTensorParallelPlugin(**{"torch_device_mesh": mesh, **wrong})
            told.append(str(caught.value))
        return plugin.tp_size, tuple(model[0].weight.to_local().shape), told

    for size, shape, (wrong_size, wrong_mesh) in debug_launcher(train):
        assert (size, shape) == (2, (4, 6))
        assert "tp_size=4 must be 2, as in torch_device_mesh" in wrong_size
        assert wrong_mesh.endswith("must be a mesh whose last dimension is named 'tp'")


def test_an_optimizer_prepared_later_trains_the_sharded_parameters():
    def train():
        accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = accelerator.prepare(model)
        optimizer = accelerator.prepare(optimizer)
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        return held == {id(each) for each in model.parameters()}

    assert all(debug_launcher(train))


def test_an_optimizer_that_has_stepped_cannot_be_sharded():
    def prepare():
        accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        with pytest.raises(ValueError, match="before the first step"):
            accelerator.prepare(model, optimizer)
        return True

    assert all(debug_launcher(prepare))


def test_fsdp_computes_in_16_bits_when_asked():
    def train():
        accelerator = Accelerator("bf16", fsdp_plugin=FullyShardedDataParallelPlugin())
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader(16, 4))
        seen = []
        model[0].register_forward_hook(lambda *args: seen.append(args[2].dtype))
        for batch in batches:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return seen[0], loss.dtype, {each.dtype for each in model.parameters()}

    assert debug_launcher(train)[0] == (torch.bfloat16, torch.float32, {torch.float32})


@pytest.mark.parametrize("name", ["fsdp", "tp"])
def test_an_overflow_on_one_rank_makes_all_skip_the_fp16_step(name):
    _, layout, _ = (LAYOUTS | CUT)[name]
    if name in CUT:
        layout = {**layout, "torch_tp_plugin": TorchTensorParallelPlugin(plan=PLAN)}

    def train():
        scaler = GradScalerKwargs(init_scale=128.0)
        accelerator = Accelerator("fp16", kwargs_handlers=[scaler], **layout)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader(12, 2))
        skipped = []
        for number, batch in enumerate(batches):
            overflows = number == 1 and accelerator.process_index == 1
            accelerator.backward(loss_of(model, batch) * (float("inf") if overflows else 1.0))
            optimizer.step()
            optimizer.zero_grad()
            skipped.append(accelerator.optimizer_step_was_skipped)
        finite = all(torch.isfinite(each).all() for each in weights(model))
        return skipped[:3], accelerator.scaler.get_scale(), finite

    assert list(debug_launcher(train)) == [([False, True, False], 64.0, True)] * 2


@pytest.mark.parametrize(
    "policy",
    [{}, {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["No"]}],
    ids=["no policy", "none of that name"],
)
def test_activations_of_no_submodule_cannot_be_computed_again(policy):
    def prepare():
        plugin = FullyShardedDataParallelPlugin(activation_checkpointing=True, **policy)
        with pytest.raises(ValueError, match="auto_wrap_policy names no submodule of Sequential"):
            Accelerator(fsdp_plugin=plugin).prepare(mlp())
        return True

    assert all(debug_launcher(prepare))


def test_models_with_nothing_to_train_are_not_wrapped():
    def prepare():
        accelerator = Accelerator()
        frozen = mlp().requires_grad_(False)
        return accelerator.prepare(frozen) is frozen, accelerator.prepare(nn.MSELoss()) is not None

    assert list(debug_launcher(prepare)) == [(True, True)] * 2


def test_one_process_without_a_group_keeps_its_model_whole():
    _, layout, _ = LAYOUTS["fsdp by layers"]
    losses, got, _ = curve(**layout)
    reset_all("now without FSDP")
    alone, alone_weights, _ = curve()
    assert losses == alone
    assert close(got, alone_weights, 0)


def test_sequences_are_not_cut_and_that_is_told():
    def prepare():
        with pytest.raises(NotImplementedError, match="cp_size=2"):
            Accelerator(**sizes(cp=2))
        return True

    assert all(debug_launcher(prepare))
