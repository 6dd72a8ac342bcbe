"""16 bit precision on the CPU: what is computed in it, what comes out, and that models survive."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from nbstate import Accelerator, AutocastKwargs, GradScalerKwargs, debug_launcher
from nbstate.state import reset_all
from nbstate.train.precision import Precision
from tests.train.ranks import close, loader, loss_of, mlp, weights

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


@dataclass
class Output:
    logits: torch.Tensor
    parts: list


class Everything(nn.Module):
    """Layers of many kinds, each of which has to know half precision."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2))
        x, _ = self.attention(x, x, x)
        x, _ = self.lstm(x)
        logits = self.head(torch.dropout(x.mean(1), 0.1, self.training))
        self.seen = logits.dtype
        return Output(logits, [x, {"tokens": tokens}])


@pytest.mark.parametrize("precision", TYPES)
def test_models_compute_in_16_bits_and_give_32(precision):
    accelerator = Accelerator(precision)
    original = Everything()
    model = accelerator.prepare(original)
    out = model(torch.randint(10, (2, 5)))
    assert original.seen == TYPES[precision]
    assert out.logits.dtype == out.parts[0].dtype == torch.float32
    assert out.parts[1]["tokens"].dtype == torch.int64
    accelerator.backward(out.logits.sum())
    assert all(each.grad.dtype == torch.float32 for each in model.parameters())


@pytest.mark.parametrize("precision", TYPES)
def test_training_in_16_bits_learns_on_two_ranks(precision):
    def train():
        accelerator = Accelerator(precision, kwargs_handlers=[GradScalerKwargs(init_scale=128.0)])
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader(16, 4))
        losses = []
        for _ in range(5):
            for batch in batches:
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(accelerator.reduce(loss.detach(), "mean")))
        return losses, float(norm), weights(model)

    (losses, norm, one), (_, _, other) = debug_launcher(train)
    assert losses[-1] < losses[0]
    assert 0 < norm < 10  # not the scaled one
    assert close(one, other, 0)


def test_autocast_outside_of_a_model():
    accelerator = Accelerator("bf16")
    with accelerator.autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    with accelerator.autocast(AutocastKwargs(enabled=False)):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_without_mixed_precision_nothing_is_wrapped():
    accelerator = Accelerator()
    model = mlp()
    assert accelerator.prepare(model) is model
    assert "forward" not in vars(model)
    assert accelerator.scaler is None


def test_a_prepared_model_can_be_copied_and_pickled_and_gets_its_own_forward_back():
    accelerator = Accelerator("bf16")
    model = accelerator.prepare(mlp())
    inputs = torch.ones(2, 6)
    expected = model(inputs)
    assert torch.equal(copy.deepcopy(model)(inputs), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(inputs), expected)
    assert accelerator.unwrap_model(model) is model
    assert torch.equal(model(inputs), expected)
    accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    assert "forward" not in vars(model)


def test_fp8_falls_back_with_a_warning_where_the_device_cannot():
    with pytest.warns(UserWarning, match="fp8"):
        accelerator = Accelerator("fp8")
    assert accelerator.mixed_precision == "bf16"
    assert accelerator.prepare(mlp())(torch.ones(1, 6)).dtype == torch.float32


def test_fp8_trains_linear_layers_through_torchao():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    # What an Accelerator on a device that can does; torchao computes in 8 bits on the CPU too.
    Precision("fp8", torch.device("cpu")).wrap(model)
    # The last layer's sizes do not suit 8 bit products.
    assert [type(layer).__name__ for layer in model] == ["Float8Linear", "ReLU", "Linear"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, wanted = torch.randn(64, 32), torch.randn(64, 10)
    losses = []
    for _ in range(20):
        outputs = model(inputs)
        assert outputs.dtype == torch.float32
        loss = nn.functional.mse_loss(outputs, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 1.5
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


def two_weights():
    """Two models of one weight, 1, each with an optimizer of its own, in fp16."""
    accelerator = Accelerator("fp16", kwargs_handlers=[GradScalerKwargs(init_scale=64.0)])
    models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    for model in models:
        nn.init.ones_(model.weight)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1.0) for each in models]
    return accelerator, *accelerator.prepare(*models, *optimizers)


def test_clipping_for_one_optimizer_leaves_the_gradients_of_another_to_its_own_step():
    accelerator, first, second, one, other = two_weights()
    inputs = torch.full((1, 1), 0.5)
    for model, optimizer in ((first, one), (second, other)):
        accelerator.backward(model(inputs).sum())
        accelerator.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
    assert first.weight.item() == second.weight.item() == 0.5


@pytest.mark.parametrize("ask", ["clip_grad_norm_", "clip_grad_value_", "unscale_gradients"])
def test_gradients_of_two_optimizers_are_unscaled_once_whoever_asks_for_it(ask):
    accelerator, first, second, one, other = two_weights()
    inputs = torch.full((1, 1), 0.5)
    for _ in range(2):
        accelerator.backward(first(inputs).sum() + second(inputs).sum())
        if ask == "unscale_gradients":
            accelerator.unscale_gradients()
        else:
            both = [*first.parameters(), *second.parameters()]
            getattr(accelerator, ask)(both, 100.0)
        for optimizer in (one, other):
            optimizer.step()
            optimizer.zero_grad()
    assert first.weight.item() == second.weight.item() == 0.0


def test_an_overflow_of_one_optimizer_lowers_the_scale_for_both_after_their_steps():
    def train():
        accelerator, first, second, one, other = two_weights()
        weights = [model.module if hasattr(model, "module") else model for model in (first, second)]
        inputs, seen = torch.full((1, 1), 0.5), []
        for factor in (float("inf"), 1.0):
            accelerator.backward(first(inputs).sum() * factor)
            accelerator.backward(second(inputs).sum())
            for optimizer in (one, other):
                optimizer.step()
                optimizer.zero_grad()
            skipped = one.step_was_skipped, other.step_was_skipped
            seen.append((*skipped, *(each.weight.item() for each in weights)))
        return seen, accelerator.scaler.get_scale()

    expected = [(True, False, 1.0, 0.5), (False, False, 0.5, 0.0)], 32.0
    assert train() == expected
    assert list(debug_launcher(train)) == [expected] * 2


def test_the_scale_is_up_to_date_where_only_one_of_two_optimizers_steps():
    accelerator, first, _, one, _ = two_weights()
    accelerator.backward(first(torch.ones(1, 1)).sum() * float("inf"))
    one.step()
    one.zero_grad()
    copied = copy.deepcopy(one)
    assert copied.scaler.get_scale() == accelerator.scaler.state_dict()["scale"] == 32.0
    accelerator.backward(first(torch.full((1, 1), 0.5)).sum())
    assert first.weight.grad.item() == 16.0
    one.step()
    assert first.weight.item() == 0.5


def test_an_optimizer_that_is_not_prepared_steps_as_with_torchs_scaler():
    accelerator = Accelerator("fp16", kwargs_handlers=[GradScalerKwargs(init_scale=64.0)])
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for factor in (1.0, float("inf")):
        accelerator.backward(model(torch.full((1, 1), 0.5)).sum() * factor)
        accelerator.scaler.unscale_(optimizer)
        accelerator.scaler.step(optimizer)
        accelerator.scaler.update()
        optimizer.zero_grad()
    assert model.weight.item() == 0.5
    assert accelerator.scaler.get_scale() == 32.0


def test_optimizers_that_are_gone_hold_no_change_of_the_scale_back():
    accelerator, *everything = two_weights()
    everything = accelerator.free_memory(*everything)
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.ones(1, 1)).sum() * float("inf"))
    optimizer.step()
    assert accelerator.scaler.get_scale() == 32.0
