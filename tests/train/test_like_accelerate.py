"""A changed import is all that a training script written for Accelerate needs."""

from __future__ import annotations

import inspect
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


# Further keyword arguments of theirs, for what this one has no use for.
UNTAKEN = {
    "load_state": {"load_kwargs", "load_model_func_kwargs"},
    "prepare_data_loader": {"slice_fn_for_dispatch"},
    "save_state": {"save_model_func_kwargs"},
}


def test_every_name_and_argument_is_there_or_tells_what_to_use():
    import accelerate

    ours = nbstate.Accelerator
    for name, theirs in inspect.getmembers(accelerate.Accelerator):
        if name[0] == "_" and name != "__init__":
            continue
        if not hasattr(ours, name):
            with pytest.raises(AttributeError, match=f"'{name}' and nbstate's has not: "):
                getattr(nbstate.Accelerator(), name)
        elif inspect.isfunction(theirs):
            # A decorator of theirs hides the arguments of those that only the main process runs.
            hidden = [
                c.cell_contents for c in theirs.__closure__ or () if callable(c.cell_contents)
            ]
            told = hidden[0] if hidden else theirs
            wanted = set(inspect.signature(told).parameters) - UNTAKEN.get(name, set())
            assert wanted - {"self"} <= set(inspect.signature(getattr(ours, name)).parameters), name
    with pytest.raises(AttributeError, match="no attribute 'prepare_everything'"):
        nbstate.Accelerator().prepare_everything  # noqa: B018


def test_a_saved_model_is_read_by_accelerate(tmp_path):
    import accelerate

    ours = nbstate.Accelerator()
    for safe in (True, False):
        for limit in ("1KB", 100):  # one file; a file for almost each weight
            where = tmp_path / f"{safe}{limit}"
            model = mlp(seed=3)
            ours.save_model(model, where, limit, safe)
            found = mlp(seed=4)
            accelerate.load_checkpoint_in_model(found, where, strict=True)
            assert close(found.parameters(), model.parameters(), 0)
            theirs = tmp_path / "theirs" / where.name
            accelerate.Accelerator(cpu=True).save_model(mlp(seed=3), theirs, limit, safe)
            assert {path.name for path in where.iterdir()} == {
                path.name for path in theirs.iterdir()
            }
