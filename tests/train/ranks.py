"""What the tests of this folder share: small models and data, the same on every rank."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = 6


def data(size=16):
    """Inputs and targets, always the same."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64).float()
    return inputs, torch.randn(size, 1, generator=generator)


def loader(size=16, batch_size=2, **options):
    return DataLoader(TensorDataset(*data(size)), batch_size, **options)


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def weights(model):
    """Copies of a model's parameters, whole ones also where they are sharded."""
    return [
        (each.full_tensor() if hasattr(each, "full_tensor") else each).detach().clone()
        for each in model.parameters()
    ]


def close(one, other, tolerance=1e-6):
    return all(
        torch.allclose(a, b, atol=tolerance, rtol=0) for a, b in zip(one, other, strict=True)
    )
