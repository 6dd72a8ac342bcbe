"""A changed import is all that a training script written for Accelerate needs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import BatchSampler

import nbstate
from nbstate import debug_launcher
from nbstate.train.data import deal
from tests.train.ranks import close, loader, loss_of, mlp, weights


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("even", [False, True])
def test_ranks_get_the_batches_that_accelerate_gives_them(split, even):
    from accelerate.data_loader import BatchSamplerShard

    for size, batch_size, ranks in itertools.product(range(1, 30), range(1, 6), range(2, 5)):
        if split and batch_size % ranks:
            continue
        sampler = BatchSampler(range(size), batch_size, drop_last=False)
        rounds = list(deal(sampler, ranks, batch_size=batch_size, split=split, even=even))
        for rank in range(ranks):
            ours = [part for each in rounds if (part := each.parts[rank])]
            theirs = BatchSamplerShard(sampler, ranks, rank, split_batches=split, even_batches=even)
            # Of a short batch cut unevenly we give every rank a share, not all to the first.
            compared = size // batch_size if split and not even else None
            assert ours[:compared] == list(theirs)[:compared], (size, batch_size, ranks, rank)


def trained(accelerator_class, batch_size=2):
    """The loop of Accelerate's documentation."""
    accelerator = accelerator_class(gradient_accumulation_steps=2, cpu=True)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    model, optimizer, training, scheduler = accelerator.prepare(
        model, optimizer, loader(32, batch_size), scheduler
    )
    for _ in range(2):
        for inputs, targets in training:
            with accelerator.accumulate(model):
                loss = loss_of(model, (inputs, targets))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
    accelerator.end_training()
    return weights(accelerator.unwrap_model(model)), scheduler.get_last_lr(), len(losses)


def test_the_same_script_trains_the_same_weights():
    def both():
        import accelerate

        theirs = trained(accelerate.Accelerator)
        ours = trained(nbstate.Accelerator)
        return close(ours[0], theirs[0], 1e-6), ours[1:] == theirs[1:]

    assert list(debug_launcher(both)) == [(True, True)] * 2
