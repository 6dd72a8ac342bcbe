"""The examples in the documentation of the training facade run and show what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import nbstate
import nbstate.train
from nbstate.state import reset_all

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(nbstate.train.__path__, "nbstate.train.")
)


def names():
    """What the examples take for given."""
    accelerator = nbstate.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(torch.ones(6, 1), torch.ones(6, 1)), batch_size=2)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    x, y = torch.ones(2, 1), torch.ones(2, 1)
    return {
        **locals(),
        "torch": torch,
        "Accelerator": nbstate.Accelerator,
        "loss_function": torch.nn.functional.mse_loss,
    }


@pytest.mark.parametrize("module", MODULES)
def test_examples_do_what_they_show(module, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    loaded = importlib.import_module(module)
    for test in doctest.DocTestFinder(exclude_empty=True).find(loaded):
        test.globs.update(names())
        assert doctest.DocTestRunner().run(test).failed == 0, capsys.readouterr().out
        reset_all("the example is over")


def test_everything_public_of_the_accelerator_is_documented():
    undocumented = [
        name
        for name, member in inspect.getmembers(nbstate.Accelerator)
        if not name.startswith("_") and not inspect.getdoc(member)
    ]
    assert undocumented == []
