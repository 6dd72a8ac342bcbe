"""What every rank would import for itself is in the kernel before the fork, and nothing else is."""

from __future__ import annotations

import pytest

TRAINING = {
    "an optimizer by its module": """
        import torch
        def train():
            return here(), torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    """,
    "an optimizer by another name": """
        from torch.optim import AdamW as Best
        def optimizer(model):
            return Best(model.parameters())
        def train():
            return here(), optimizer(torch.nn.Linear(1, 1))
    """,
    "imported by the function": """
        def train():
            loaded = here()
            from torch.optim.sgd import SGD
            return loaded, SGD(torch.nn.Linear(1, 1).parameters())
    """,
    "DDP in a method": """
        from torch.nn.parallel import DistributedDataParallel as DDP
        class Trainer:
            def train(self):
                nbstate.PartialState()
                return here(), DDP(torch.nn.Linear(1, 1)).module
        train = Trainer().train
    """,
    "an Accelerator": """
        def train():
            loaded = here()
            accelerator = nbstate.Accelerator()
            return loaded, accelerator.prepare(torch.nn.Linear(1, 1)).module
    """,
}
HERE = """
import sys, torch, nbstate
def here():
    return "torch._dynamo" in sys.modules
"""


@pytest.mark.parametrize("cell", TRAINING.values(), ids=TRAINING)
def test_a_function_that_trains_finds_torchs_compiler_imported(kernel, cell):
    assert kernel.run(HERE).error is None
    assert kernel.run(cell).error is None
    cell = kernel.run("[found for found, _ in nbstate.notebook_launcher(train, (), 2)]")
    assert cell.error is None
    assert cell.result == "[True, True]"


def test_one_that_does_not_train_has_nothing_imported(kernel):
    kernel.run(HERE)
    cell = kernel.run("""
        def add(a, b):
            return here() or (torch.ones(1) * a + b).item()
        list(nbstate.notebook_launcher(add, (1, 2), 2)), here()
    """)
    assert cell.result == "([3.0, 3.0], False)"
