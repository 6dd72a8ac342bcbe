"""The real DeepSpeed on CPU ranks, beside DDP; run by hand, since it compiles for minutes.

DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed && pytest tests/train/test_deepspeed.py
"""

from __future__ import annotations

import pytest
import torch

from nbstate import Accelerator, DeepSpeedPlugin, notebook_launcher
from tests.train.ranks import close, loader, loss_of, mlp, weights

pytest.importorskip("deepspeed", reason="not among the test packages: it compiles for minutes")
# Of what it still calls in torch.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
BY_DEEPSPEED = {"DS_ACCELERATOR": "cpu"}


def train(stage, window, precision="no", epochs=3, clip=None):
    """The losses, and the weights where each rank has them; with a stage through DeepSpeed."""
    if stage is None:
        accelerator = Accelerator(precision, gradient_accumulation_steps=window, cpu=True)
    else:
        config = {"gradient_accumulation_steps": window}
        plugin = DeepSpeedPlugin(config, zero_stage=stage, gradient_clipping=clip)
        accelerator = Accelerator(precision, deepspeed_plugin=plugin, cpu=True)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    model, optimizer, scheduler, batches = accelerator.prepare(
        model, optimizer, scheduler, loader(32, 2)
    )
    losses, norms = [], []
    for _ in range(epochs):
        for batch in batches:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                if clip is not None:
                    norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                    norms.append(None if norm is None else float(norm))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    whole = stage != 3  # whose ranks hold shards
    return losses, weights(accelerator.unwrap_model(model)) if whole else None, norms


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_it_trains_as_ddp_does(stage, window):
    wanted, weights_wanted, *_ = notebook_launcher(train, (None, window), 2, cpu=True)[0]
    results = notebook_launcher(train, (stage, window), 2, cpu=True, env=BY_DEEPSPEED)
    for losses, found, _ in results:
        assert losses == pytest.approx(wanted, abs=1e-5)
        assert found is None or close(found, weights_wanted, 1e-5)


def test_it_computes_in_16_bits_where_asked_to():
    wanted, *_ = notebook_launcher(train, (None, 1, "bf16"), 2, cpu=True)[0]
    in_32_bits, *_ = notebook_launcher(train, (None, 1), 2, cpu=True)[0]
    losses, *_ = notebook_launcher(train, (2, 1, "bf16"), 2, cpu=True, env=BY_DEEPSPEED)[0]
    assert losses == pytest.approx(wanted, abs=1e-3)
    assert losses != pytest.approx(in_32_bits, abs=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_it_clips_as_ddp_does(stage):
    given = (2, "no", 3, 0.1)
    wanted, _, norms_wanted = notebook_launcher(train, (None, *given), 2, cpu=True)[0]
    ranks = notebook_launcher(train, (stage, *given), 2, cpu=True, env=BY_DEEPSPEED)
    losses, _, norms = ranks[0]
    assert losses == pytest.approx(wanted, abs=1e-5)
    if stage == 0:  # which tells none
        assert set(norms) == {None}
    else:
        assert norms[::2] == [None] * len(norms[::2])
        assert norms[1::2] == pytest.approx(norms_wanted[1::2], abs=1e-5)
