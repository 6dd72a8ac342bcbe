"""Things prepared one by one, and the settings of an Accelerator under Accelerate's names."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from nbstate import (
    Accelerator,
    DataLoaderConfiguration,
    FullyShardedDataParallelPlugin,
    RankError,
    debug_launcher,
    skip_first_batches,
)
from nbstate.state import reset_all
from tests.train.ranks import close, loader, loss_of, mlp, weights


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def trained(one_by_one):
    reset_all("again")
    accelerator = Accelerator()
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    batches = loader(24)
    if one_by_one:
        model = accelerator.prepare_model(model)
        optimizer = accelerator.prepare_optimizer(optimizer)
        schedule = accelerator.prepare_scheduler(schedule)
        batches = accelerator.prepare_data_loader(batches)
    else:
        prepared = accelerator.prepare(model, optimizer, schedule, batches)
        model, optimizer, schedule, batches = prepared
    for batch in batches:
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return weights(model), schedule.get_last_lr()


def test_one_by_one_is_the_same_as_all_at_once():
    def both():
        return trained(one_by_one=True), trained(one_by_one=False)

    for ours, wanted in debug_launcher(both):
        assert close(ours[0], wanted[0], 0)
        assert ours[1] == wanted[1]


def test_a_model_to_evaluate_is_shared_by_nobody():
    def kinds():
        accelerator = Accelerator()
        judge = accelerator.prepare_model(mlp(), evaluation_mode=True)
        trained = accelerator.prepare_model(mlp())
        return [isinstance(each, DistributedDataParallel) for each in (judge, trained)]

    assert list(debug_launcher(kinds)) == [[False, True]] * 2


def test_any_object_that_steps_is_a_scheduler():
    class Warmup:
        steps = 0

        def step(self):
            self.steps += 1

    accelerator = Accelerator()
    own = Warmup()
    prepared = accelerator.prepare_scheduler(own)
    prepared.step()
    assert own.steps == 1
    assert accelerator.prepare_scheduler(own) is prepared


@pytest.mark.parametrize("sharded", [False, True])
def test_sync_can_be_asked_for_in_the_backward_pass(sharded):
    def gradients():
        accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin() if sharded else None)
        model = accelerator.prepare(nn.Linear(1, 1, bias=False))
        first, second = torch.full((1, 1), accelerator.process_index + 1.0), torch.ones(1, 1)
        with accelerator.no_sync(model):
            losses = [model(first).sum(), model(second).sum()]
            accelerator.backward(losses[0])
        with accelerator.trigger_sync_in_backward(model):
            accelerator.backward(losses[1])
        grad = model.get_parameter("weight" if sharded else "module.weight").grad
        return (grad.full_tensor() if sharded else grad).item()

    assert list(debug_launcher(gradients)) == [2.5, 2.5]


def test_fp16_gradients_are_unscaled_once_at_the_end_of_a_window():
    accelerator = Accelerator("fp16", gradient_accumulation_steps=2)
    model, optimizer = nn.Linear(1, 1), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, prepared = accelerator.prepare(model, optimizer)
    seen = []
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            accelerator.unscale_gradients(optimizer)
            accelerator.unscale_gradients([prepared])
            accelerator.unscale_gradients()
            seen.append(model.weight.grad.item())
            prepared.step()
    scale = accelerator.scaler.get_scale()
    assert seen == [scale / 2, 1.0]
    assert not prepared.step_was_skipped


def test_a_compiled_model_stays_compiled_unless_told_otherwise():
    accelerator = Accelerator(dynamo_backend="eager")
    model = accelerator.prepare(mlp())
    assert accelerator.unwrap_model(model)._compiled_call_impl is not None
    assert accelerator.unwrap_model(model, keep_torch_compile=False)._compiled_call_impl is None
    own = torch.compile(mlp(), backend="eager")
    assert accelerator.unwrap_model(own) is own
    assert accelerator.unwrap_model(own, keep_torch_compile=False) is own._orig_mod


def test_settings_are_at_hand():
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    assert accelerator.use_seedable_sampler
    assert accelerator.even_batches
    assert accelerator.dispatch_batches is None
    assert not accelerator.split_batches
    assert accelerator.save_iteration == 0
    accelerator.even_batches = False
    assert not accelerator.prepare(loader()).even_batches


def test_random_numbers_are_shared_from_the_start_of_an_epoch_where_asked_for():
    def draw(kinds):
        reset_all("again")
        accelerator = Accelerator(rng_types=kinds)
        torch.manual_seed(accelerator.process_index)
        random.seed(accelerator.process_index)
        np.random.seed(accelerator.process_index)
        next(iter(accelerator.prepare(loader())))
        return torch.rand(()).item(), random.random(), np.random.rand()

    def all_ways():
        return draw(["torch"]), draw(None)

    (shared, own), (other_shared, other_own) = debug_launcher(all_ways)
    assert shared[0] == other_shared[0]
    assert shared[1:] != other_shared[1:]
    assert own[0] != other_own[0]
    with pytest.raises(ValueError, match="rng_types has 'tpu'; it takes 'generator', 'torch'"):
        Accelerator(rng_types=["tpu"])


def test_two_arguments_for_one_thing_are_refused():
    with pytest.raises(ValueError, match="dynamo_plugin and dynamo_backend say the same thing"):
        Accelerator(dynamo_plugin="x", dynamo_backend="eager")


def test_an_accelerator_says_why_it_does_not_travel():
    with pytest.raises(TypeError, match=r"return what was trained instead: accelerator\.unwrap_mo"):
        pickle.dumps(Accelerator())


def test_a_prepared_optimizer_and_its_schedule_travel_and_are_copied():
    def train():
        accelerator = Accelerator()
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        model, optimizer, schedule, batches = accelerator.prepare(
            model, optimizer, schedule, loader(8)
        )
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        twin = copy.deepcopy(optimizer)
        twin.step()
        skipped = optimizer.step_was_skipped, twin.step_was_skipped
        return accelerator.unwrap_model(model), optimizer, schedule, skipped

    for model, optimizer, schedule, skipped in debug_launcher(train):
        assert skipped == (False, False)
        assert schedule.get_last_lr() == [0.05 * 0.5**4] == [optimizer.param_groups[0]["lr"]]
        # What arrives together belongs together.
        mine, theirs = list(model.parameters()), optimizer.param_groups[0]["params"]
        assert all(one is other for one, other in zip(mine, theirs, strict=True))
        assert len(optimizer.state_dict()["state"]) == len(mine)


class Rows(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(8).view(2, 4))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [Rows(), torch.arange(8).view(2, 4)], ids=["stream", "indexed"])
def test_whole_batches_are_cut_by_rank_0_only(dataset, workers):
    def read(dispatch):
        config = DataLoaderConfiguration(split_batches=True, dispatch_batches=dispatch)
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        return [batch.tolist() for batch in Accelerator(dataloader_config=config).prepare(loader)]

    assert list(debug_launcher(read, (True,))) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    with pytest.raises(RankError, match=r"whole batches.*add dispatch_batches=True"):
        debug_launcher(read, (False,))
    assert read(False) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_streams_are_prepared_before_batches_are_skipped():
    accelerator, stream = Accelerator(), DataLoader(Rows(), batch_size=1)
    with pytest.raises(TypeError, match=r"prepare the dataloader first, and skip then"):
        accelerator.prepare(skip_first_batches(stream, 1))
    (batch,) = skip_first_batches(accelerator.prepare(stream), 1)
    assert batch.tolist() == [[4, 5, 6, 7]]
