"""Learning rates on any number of ranks are those of one process; skipped steps are told."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nbstate import (
    Accelerator,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    debug_launcher,
)
from nbstate.state import reset_all
from tests.train.ranks import loader, loss_of, mlp


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def rates(
    size=20,
    batch_size=2,
    window=1,
    split=False,
    adjust=False,
    last="rescale",
    micro=None,
    at_sync=False,
    epochs=2,
    **scheduler,
):
    """The learning rate after each epoch of an ordinary loop.

    `micro` cuts batches into smaller ones; `at_sync` calls the schedule at the end of windows only.
    """
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            window, adjust_scheduler=adjust, last_window=last
        ),
        split_batches=split,
    )
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = scheduler.get("make", lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5))
    model, optimizer, schedule, batches = accelerator.prepare(
        model, optimizer, schedule(optimizer), loader(size, batch_size)
    )
    seen = []
    for _ in range(epochs):
        for inputs, targets in batches:
            step = micro or len(inputs)
            for part in zip(inputs.split(step), targets.split(step), strict=True):
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, part))
                    optimizer.step()
                    if accelerator.sync_gradients or not at_sync:
                        schedule.step()
                    optimizer.zero_grad()
        seen.append(schedule.get_last_lr()[0])
    return seen


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"size": 17},  # the last round lacks batches
        {"window": 4},  # and the last window is incomplete
        {"window": 4, "size": 22},
        {"window": 3, "adjust": True},
        {"split": True, "batch_size": 4, "size": 18},
        {"window": 4, "size": 22, "at_sync": True},
        {"window": 3, "adjust": True, "at_sync": True},
        {"window": 4, "micro": 1, "batch_size": 4, "size": 40},
    ],
    ids=str,
)
def test_every_epoch_ends_at_the_rate_of_a_single_process(case):
    alone = rates(**case)
    for ranks in (2, 4):
        for got in debug_launcher(lambda: rates(**case), num_processes=ranks):
            assert got == pytest.approx(alone)


def test_a_single_process_moves_once_an_update():
    assert rates(size=20, batch_size=2, window=4, epochs=1) == [0.5**3]
    reset_all("again")
    assert rates(size=20, batch_size=2, window=4, adjust=True, epochs=1) == [0.5**10]
    reset_all("again")
    assert rates(size=40, batch_size=4, window=4, micro=1, epochs=1) == [0.5**10]


@pytest.mark.parametrize("at_sync", [False, True])
def test_a_schedule_moves_with_the_updates_whatever_becomes_of_the_last_window(at_sync):
    def moves(**case):
        case = {"batch_size": 2, "window": 4, "at_sync": at_sync} | case
        found = [-math.log2(rate) for rate in rates(**case)]
        reset_all("again")
        return found

    assert moves(size=20, epochs=4) == [3, 6, 9, 12]
    assert moves(size=20, last="drop", epochs=4) == [2, 4, 6, 8]
    assert moves(size=20, last="carry", epochs=4) == [2, 5, 7, 10]
    # Seven batches are one window of two ranks, but almost two of a single process.
    odd = {"size": 14, "epochs": 4}
    assert debug_launcher(lambda: moves(last="rescale", **odd))[0] == [2, 4, 6, 8]
    assert debug_launcher(lambda: moves(last="drop", **odd))[0] == [1, 2, 3, 4]
    assert debug_launcher(lambda: moves(last="carry", **odd))[0] == [1, 3, 5, 7]


def test_a_schedule_without_a_prepared_optimizer_moves_as_one_with_it():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(mlp().parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    schedule, batches = accelerator.prepare(schedule, loader(8, 2))
    optimizer.step()
    for _ in batches:
        with accelerator.accumulate():
            schedule.step()
    assert schedule.get_last_lr() == [0.5**2]


def test_a_schedule_of_a_fixed_length_is_not_pushed_past_its_end():
    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)

    def train():
        return rates(size=20, batch_size=2, epochs=1, make=one_cycle)

    assert debug_launcher(train)[0] == pytest.approx(train())


def test_a_schedule_outside_of_the_loop_moves_by_one():
    def train():
        accelerator = Accelerator()
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            torch.optim.SGD(model.parameters(), lr=1.0), patience=0
        )
        model, optimizer, schedule, plateau, batches = accelerator.prepare(
            model, optimizer, schedule, plateau, loader()
        )
        for _ in range(3):
            for batch in batches:
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            plateau.step(1.0)
        return schedule.get_last_lr(), plateau.get_last_lr()

    for steady, plateau in debug_launcher(train):
        assert steady == [0.5**3]
        assert plateau == pytest.approx([0.1**2])


def test_step_scheduler_with_optimizer_false_passes_every_call_on():
    accelerator = Accelerator(step_scheduler_with_optimizer=False, gradient_accumulation_steps=4)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, schedule, batches = accelerator.prepare(model, optimizer, schedule, loader(8))
    optimizer.step()
    for _ in batches:
        schedule.step()
    assert schedule.get_last_lr() == [0.5**4]


def test_within_a_window_optimizer_and_scheduler_do_nothing():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, schedule, batches = accelerator.prepare(model, optimizer, schedule, loader())
    before = [parameter.clone() for parameter in model.parameters()]
    iterator = iter(batches)
    batch = next(iterator)
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert schedule.get_last_lr() == [1.0]
    iterator.close()
    with accelerator.accumulate(model):
        assert accelerator.sync_gradients
    with accelerator.accumulate(model):  # no dataloader either
        schedule.step()
    assert schedule.get_last_lr() == [1.0]


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_the_fp16_scaler_leaves_out_are_told_and_hold_the_schedule(fused):
    accelerator = Accelerator("fp16", kwargs_handlers=[GradScalerKwargs(init_scale=4.0)])
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=fused)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, schedule, batches = accelerator.prepare(model, optimizer, schedule, loader(6))
    told = []
    for number, batch in enumerate(batches):
        loss = loss_of(model, batch) * (float("inf") if number == 1 else 1.0)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        told.append(accelerator.optimizer_step_was_skipped)
    assert told == [False, True, False]
    assert schedule.get_last_lr() == [0.5**2]
    assert accelerator.scaler.get_scale() == 2.0


def test_a_prepared_optimizer_is_an_optimizer_like_the_one_it_was():
    accelerator = Accelerator()
    model = mlp()
    original = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = accelerator.prepare(original)
    assert isinstance(optimizer, torch.optim.Optimizer)
    optimizer.param_groups[0]["lr"] = 0.2
    assert original.param_groups[0]["lr"] == 0.2
    assert optimizer.state is original.state
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)
    assert original.param_groups[0]["lr"] == 0.1
    assert accelerator.prepare(optimizer) is optimizer
    assert accelerator.prepare(schedule).optimizers == [optimizer]
