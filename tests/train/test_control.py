"""Decisions taken together, seeds, batch sizes that fit, and preparing in general."""

from __future__ import annotations

import random
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch import nn

from nbstate import (
    Accelerator,
    AcceleratorState,
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    DistributedType,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    PartialState,
    TorchDynamoPlugin,
    debug_launcher,
    find_executable_batch_size,
    set_seed,
)
from nbstate.state import reset_all
from tests.train.ranks import close, loader, loss_of, mlp, weights


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def test_all_ranks_stop_at_the_same_step_and_know_why():
    def train():
        accelerator = Accelerator()
        for step, _ in enumerate(accelerator.prepare(loader(20, 1))):
            if step == 3 and accelerator.process_index == 1:
                accelerator.request_stop("no better for 3 steps")
            if accelerator.should_stop():
                break
        return step, accelerator.should_stop(), accelerator.stop_reasons

    assert list(debug_launcher(train)) == [(3, True, {1: "no better for 3 steps"})] * 2


def test_a_trigger_is_seen_by_all_and_then_reset():
    def train():
        accelerator = Accelerator()
        seen = []
        for step in range(4):
            if step == 1 and accelerator.process_index == 0:
                accelerator.set_trigger()
            seen.append(accelerator.check_trigger())
        return seen

    assert list(debug_launcher(train)) == [[False, True, False, False]] * 2


def test_seeds_are_equal_unless_they_are_to_differ():
    def draw():
        PartialState()
        drawn = []
        for apart in (False, True):
            set_seed(7, device_specific=apart)
            drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
        return drawn

    (first, first_apart), (second, second_apart) = debug_launcher(draw)
    assert first == second == first_apart
    assert all(one != other for one, other in zip(first_apart, second_apart, strict=True))


def test_the_batch_size_is_halved_until_it_fits():
    tried = []

    @find_executable_batch_size(starting_batch_size=20)
    def train(batch_size, limit):
        tried.append(batch_size)
        if batch_size > limit:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return batch_size

    assert train(6) == 5
    assert tried == [20, 10, 5]
    with pytest.raises(RuntimeError, match=r"train\(\) ran out of memory even with batch_size=1"):
        train(0)


def test_other_errors_are_not_mistaken_for_lack_of_memory():
    @find_executable_batch_size
    def train(batch_size):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        train()
    with pytest.raises(TypeError, match="batch size as its first argument"):
        find_executable_batch_size(lambda: None)


def test_anything_can_be_prepared_in_any_order_and_number():
    accelerator = Accelerator()
    first, second = mlp(), mlp(1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    tensor, text = torch.ones(2), "as it is"
    prepared = accelerator.prepare(text, loader(4), second, tensor, optimizer, first, nn.MSELoss())
    assert prepared[0] is text
    assert prepared[2] is second
    assert torch.equal(prepared[3], tensor)
    assert prepared[4].optimizer is optimizer
    assert accelerator.prepare(optimizer, prepared[1])[0] is prepared[4]
    assert accelerator.prepare(optimizer, prepared[1])[1] is prepared[1]
    with pytest.raises(ValueError, match="2 values for 1 things"):
        accelerator.prepare(first, device_placement=[True, False])


def test_models_are_moved_to_the_device_unless_told_otherwise():
    accelerator = Accelerator(cpu=True)
    meta = nn.Linear(1, 1, device="meta")
    assert accelerator.prepare(meta, device_placement=[False]).weight.device.type == "meta"
    assert accelerator.device.type == "cpu"


def test_a_model_is_compiled_in_place():
    accelerator = Accelerator(dynamo_plugin=TorchDynamoPlugin(backend="eager"))
    model = accelerator.prepare(mlp())
    assert type(model) is nn.Sequential
    assert next(iter(model.state_dict())) == "0.weight"
    plain = mlp()
    assert torch.allclose(model(torch.ones(2, 6)), plain(torch.ones(2, 6)))
    assert model._compiled_call_impl is not None


def test_compiled_copies_in_16_bits_train_like_others():
    def train(plugin):
        accelerator = Accelerator("bf16", dynamo_plugin=plugin)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader(8, 2))
        for batch in batches:
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
        return weights(model)

    plain, _ = debug_launcher(train, (None,))
    for compiled in debug_launcher(train, (TorchDynamoPlugin(backend="aot_eager"),)):
        assert close(compiled, plain, 1e-3)


def test_repeated_blocks_are_compiled_one_by_one():
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=True)
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    model.forward = lambda x: model.blocks[1](model.blocks[0](x))
    model = Accelerator(dynamo_plugin=plugin).prepare(model)
    assert model._compiled_call_impl is None
    assert all(block._compiled_call_impl is not None for block in model.blocks)
    assert model(torch.ones(1, 2)).shape == (1, 2)


def test_gradients_are_clipped_by_norm_and_by_value_at_the_end_of_a_window():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    norms = []
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.full((1, 1), 6.0)).sum())
            norms.append(accelerator.clip_grad_norm_(model.parameters(), 3.0))
            accelerator.clip_grad_value_(model.parameters(), 2.0)
    assert norms == [None, pytest.approx(6.0)]
    assert model.weight.grad.item() == pytest.approx(2.0)


def test_ranks_clip_to_the_norm_that_all_of_them_have():
    def clip():
        accelerator = Accelerator()
        model, batches = accelerator.prepare(mlp(), loader(4, 2))
        for batch in batches:
            accelerator.backward(loss_of(model, batch))
        before = accelerator.clip_grad_norm_(model.parameters(), 0.01)
        after = torch.cat([each.grad.flatten() for each in model.parameters()]).norm()
        return float(before), float(after)

    (before, after), other = debug_launcher(clip)
    assert before > 0.01
    assert after == pytest.approx(0.01, rel=1e-3)
    assert other == (before, after)


def test_handlers_reach_what_they_are_for():
    def prepare():
        accelerator = Accelerator(
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=timedelta(seconds=77)),
                DistributedDataParallelKwargs(static_graph=True, comm_hook="fp16"),
            ]
        )
        model = accelerator.prepare(mlp())
        return str(accelerator.state), model.static_graph

    for state, static in debug_launcher(prepare):
        assert "0:01:17" in state
        assert static


def test_wrong_handlers_are_refused():
    with pytest.raises(TypeError, match="kwargs_handlers takes AutocastKwargs"):
        Accelerator(kwargs_handlers=[{"timeout": 3}])
    with pytest.raises(ValueError, match="more than one GradScalerKwargs"):
        Accelerator(kwargs_handlers=[GradScalerKwargs(), GradScalerKwargs()])


def test_an_accelerator_has_the_process_control_of_the_states():
    def ask():
        accelerator = Accelerator()

        @accelerator.on_main_process(share=True)
        def vocabulary():
            return {"a": accelerator.process_index}

        with accelerator.split_between_processes(list("abc")) as part:
            whole = accelerator.gather_in_order([each.upper() for each in part])
        with accelerator.main_process_first():
            pass
        accelerator.wait_for_everyone()
        return accelerator.is_main_process, vocabulary(), part, whole

    first, second = debug_launcher(ask)
    assert first == (True, {"a": 0}, ["a", "b"], ["A", "B", "C"])
    assert second == (False, {"a": 0}, ["c"], ["A", "B", "C"])


def test_decorators_work_before_any_state_exists():
    @Accelerator.on_main_process
    def speak():
        return "spoken"

    assert speak() == "spoken"
    assert not AcceleratorState.is_initialized()
    assert list(debug_launcher(speak)) == ["spoken", None]


def test_an_accelerator_tells_what_it_is():
    accelerator = Accelerator("bf16", gradient_accumulation_steps=4, cpu=True)
    accelerator.prepare(mlp(), loader())
    assert repr(accelerator) == (
        "<Accelerator: process 0 of 1 on cpu, precision bf16, window of 4; "
        "prepared 1 models, 0 optimizers, 0 schedulers, 1 dataloaders>"
    )


def test_free_memory_forgets_what_was_prepared():
    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(
        model := mlp(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    model, optimizer = accelerator.free_memory(model, optimizer)
    assert (model, optimizer) == (None, None)
    assert accelerator._models == []


def test_deepspeed_without_the_package_says_how_to_install_it():
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))
    assert accelerator.distributed_type is DistributedType.DEEPSPEED
    model = mlp()
    with pytest.raises(ImportError, match="pip install deepspeed"):
        accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())


def test_a_settings_object_of_accelerates_is_taken():
    from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin

    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3),
        dataloader_config=DataLoaderConfiguration(even_batches=False),
    )
    assert accelerator.gradient_accumulation_steps == 3
    assert not accelerator.dataloader_config.even_batches
