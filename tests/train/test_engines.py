"""Models handed to DeepSpeed, by a stand-in for its package, and to Megatron-LM."""

from __future__ import annotations

import math
import sys
import types

import accelerate.utils
import pytest
import torch
from torch import nn

from nbstate import (
    Accelerator,
    AcceleratorState,
    DeepSpeedPlugin,
    DistributedType,
    MegatronLMPlugin,
    debug_launcher,
)
from nbstate.state import reset_all
from tests.train.ranks import loader, loss_of, mlp


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


class Engine(nn.Module):
    """Does what DeepSpeed's engine does, as far as a loop can see."""

    def __init__(self, model, optimizer, config):
        super().__init__()
        self.module, self.optimizer, self.config = model, optimizer, config
        self.ends_window, self.norm = False, None

    def forward(self, inputs):
        return self.module(inputs)

    def set_gradient_accumulation_boundary(self, is_boundary):
        self.ends_window = is_boundary

    def backward(self, loss, scale_wrt_gas):
        assert not scale_wrt_gas
        loss.backward()

    def step(self):
        if self.ends_window:
            limit = self.gradient_clipping() or float("inf")
            self.norm = float(nn.utils.clip_grad_norm_(self.parameters(), limit))
            self.optimizer.overflow = not math.isfinite(self.norm)
            if not self.optimizer.overflow:
                self.optimizer.step()
            self.optimizer.zero_grad()

    def gradient_clipping(self):
        return self.config["gradient_clipping"]

    def get_global_grad_norm(self):
        return self.norm


@pytest.fixture(autouse=True)
def deepspeed(monkeypatch):
    """The engines that a stand-in for DeepSpeed's package has made."""
    engines = []

    def initialize(model, optimizer, config):
        engines.append(Engine(model, optimizer, config))
        return engines[-1], optimizer, None, None

    package = types.ModuleType("deepspeed")
    package.initialize = initialize
    monkeypatch.setitem(sys.modules, "deepspeed", package)
    return engines


def prepared(accelerator):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return accelerator.prepare(model, optimizer, loader(24, 4))


@pytest.mark.parametrize(
    ("asked", "plugin"),
    [
        (3, DeepSpeedPlugin(zero_stage=1)),
        (1, DeepSpeedPlugin(zero_stage=1, gradient_accumulation_steps=3)),
        (3, DeepSpeedPlugin(zero_stage=1, gradient_accumulation_steps=3)),
        (1, DeepSpeedPlugin({"gradient_accumulation_steps": 3}, zero_stage=1)),
        (3, DeepSpeedPlugin({"gradient_accumulation_steps": "auto"}, zero_stage=1)),
        (1, accelerate.utils.DeepSpeedPlugin(gradient_accumulation_steps=3, zero_stage=1)),
        (3, accelerate.utils.DeepSpeedPlugin(zero_stage=1)),
    ],
    ids=["accelerator", "plugin", "both", "configuration", "auto", "theirs", "theirs, auto"],
)
def test_a_model_is_handed_to_deepspeed_with_its_configuration(deepspeed, asked, plugin):
    accelerator = Accelerator(gradient_accumulation_steps=asked, deepspeed_plugin=plugin)
    engine, optimizer, batches = prepared(accelerator)
    assert accelerator.prepare(loader(4)) is not None
    assert [engine] == deepspeed
    assert engine.config["train_micro_batch_size_per_gpu"] == 4
    assert engine.config["train_batch_size"] == 12
    assert engine.config["gradient_accumulation_steps"] == 3
    assert engine.config["zero_optimization"]["stage"] == 1
    steps, seen = [], []
    engine.optimizer.register_step_post_hook(lambda *_: steps.append(len(seen)))
    for batch in batches:
        with accelerator.accumulate(engine):
            accelerator.backward(loss_of(engine, batch))
            optimizer.step()
            optimizer.zero_grad()
        seen.append(batch)
    assert steps == [2, 5]  # the engine steps once at the end of each window of three
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert accelerator.unwrap_model(engine) is engine.module
    with pytest.raises(NotImplementedError, match=r"model\.save_checkpoint"):
        accelerator.save_state("here")


def test_steps_that_differ_are_refused():
    plugin = DeepSpeedPlugin({"gradient_accumulation_steps": 2})
    with pytest.raises(ValueError, match="=4 and DeepSpeed's 2 differ; give one of them"):
        Accelerator(gradient_accumulation_steps=4, deepspeed_plugin=plugin)


@pytest.mark.parametrize(
    "plugin",
    [
        DeepSpeedPlugin({"zero_optimization": {"stage": 3}}),
        accelerate.utils.DeepSpeedPlugin(zero_stage=3),
    ],
    ids=["configuration", "theirs"],
)
def test_placeholders_of_stage_3_are_not_saved_as_weights(plugin, tmp_path):
    accelerator = Accelerator(deepspeed_plugin=plugin)
    engine, *_ = prepared(accelerator)
    with pytest.raises(NotImplementedError, match="stage 3"):
        accelerator.save_model(engine, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "fp16", "bf16"),
    [
        ({}, {"enabled": True}, None),
        ({"fp16": {"initial_scale_power": 8, "enabled": True}},
         {"initial_scale_power": 8, "enabled": True}, None),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}},
         {"enabled": True}, {"enabled": False}),
    ],
    ids=["not said", "said", "auto"],
)  # fmt: skip
def test_deepspeed_scales_the_losses_of_fp16(config, fp16, bf16):
    engine, *_ = prepared(Accelerator("fp16", deepspeed_plugin=DeepSpeedPlugin(config)))
    assert engine.config["fp16"] == fp16
    assert engine.config.get("bf16") == bf16


def test_a_step_that_the_engine_leaves_out_is_told():
    accelerator = Accelerator(
        "fp16", gradient_accumulation_steps=2, deepspeed_plugin=DeepSpeedPlugin()
    )
    engine, _, batches = prepared(accelerator)
    told = []
    for number, batch in enumerate(batches):
        with accelerator.accumulate(engine):
            accelerator.backward(loss_of(engine, batch) * (float("inf") if number == 3 else 1.0))
        told.append(accelerator.optimizer_step_was_skipped)
    assert told == [False, False, False, True, True, False]


def test_fp16_without_scaling_is_refused():
    plugin = DeepSpeedPlugin({"fp16": {"enabled": False}})
    with pytest.raises(ValueError, match="needs losses that are scaled"):
        prepared(Accelerator("fp16", deepspeed_plugin=plugin))


@pytest.mark.parametrize(
    ("plugin", "max_norm"),
    [
        (DeepSpeedPlugin(gradient_clipping=0.5), 0.5),
        (DeepSpeedPlugin({"gradient_clipping": "auto"}), 1.0),
        (DeepSpeedPlugin({"gradient_clipping": "auto"}, gradient_clipping=0.5), 0.5),
        (DeepSpeedPlugin({"gradient_clipping": 0.5}), 0.5),
        (DeepSpeedPlugin(), float("inf")),
        (accelerate.utils.DeepSpeedPlugin(), 1.0),
    ],
)
def test_gradients_are_clipped_as_deepspeeds_configuration_says(plugin, max_norm):
    accelerator = Accelerator(deepspeed_plugin=plugin)
    engine, _, batches = prepared(accelerator)
    before = [each.detach().clone() for each in engine.parameters()]
    accelerator.backward(loss_of(engine, next(iter(batches))))

    norm = float(accelerator.clip_grad_norm_(engine.parameters(), max_norm))

    moved = [
        (a - b).detach().flatten() / 0.1 for a, b in zip(before, engine.parameters(), strict=True)
    ]
    assert norm > 1.0
    assert float(torch.linalg.vector_norm(torch.cat(moved))) == pytest.approx(min(norm, max_norm))
    with pytest.raises(ValueError, match=f"a 2-norm of {max_norm:g} here, and not to max_norm=2 "):
        accelerator.clip_grad_norm_(engine.parameters(), 2.0)
    with pytest.raises(NotImplementedError, match="cuts no single gradients"):
        accelerator.clip_grad_value_(engine.parameters(), 2.0)


def test_megatron_without_the_package_says_how_to_install_it():
    accelerator = Accelerator(megatron_lm_plugin=MegatronLMPlugin())
    assert AcceleratorState().distributed_type is DistributedType.MEGATRON_LM
    with pytest.raises(ImportError, match="pip install megatron-core"):
        accelerator.prepare(mlp())


def test_what_only_megatron_can_do_is_refused_with_what_does_it(tmp_path):
    accelerator = Accelerator(megatron_lm_plugin=MegatronLMPlugin())
    model = mlp()
    with pytest.raises(NotImplementedError, match=r"SGD would train nothing.*get_megatron_optim"):
        accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for clip in (accelerator.clip_grad_norm_, accelerator.clip_grad_value_):
        with pytest.raises(NotImplementedError, match="clip_grad=1"):
            clip(model.parameters(), 1.0)
    for save in (accelerator.save_state, lambda path: accelerator.save_model(model, path)):
        with pytest.raises(NotImplementedError, match=r"megatron\.core\.dist_checkpointing"):
            save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("degrees", "shared"),
    [({"tp_degree": 2}, [[0, 1], [2, 3]]), ({"pp_degree": 2}, [[0, 2], [1, 3]])],
    ids=["layers", "pipeline"],
)
def test_ranks_with_parts_of_one_megatron_model_get_the_same_data(degrees, shared):
    def see():
        accelerator = Accelerator(megatron_lm_plugin=MegatronLMPlugin(**degrees))
        batches = accelerator.prepare(torch.utils.data.DataLoader(range(5), 2))
        gathered = [accelerator.gather_for_metrics(batch).tolist() for batch in batches]
        return [batch.tolist() for batch in batches], gathered

    seen = debug_launcher(see, num_processes=4)
    for index, ranks in enumerate(shared):
        for rank in ranks:
            assert seen[rank][0][0] == [2 * index, 2 * index + 1]
            assert seen[rank][1] == [[0, 1, 2, 3], [4]]
