"""What the Accelerator costs in a training loop, beside bare torch and Accelerate's."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.bench.scenarios import bench_kernel, run
from tests.bench.table import Row, ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS, BATCH, FEATURES = 200, 64, 64


def training(rounds: int) -> Iterator[Row]:
    """Train 200 steps of a small MLP on 2 ranks, in bare torch and with two Accelerators."""
    loops = ("bare", "by_nbstate", "by_accelerate")
    times: dict[str, list[float]] = {name: [] for name in loops}
    with bench_kernel() as kernel:
        run(kernel, "from tests.bench import train")
        for _ in range(rounds):
            for name, samples in times.items():
                # All are launched alike: only the loop is compared.
                run(kernel, f"seconds = max(by_hand(train.{name}, 2))")
                samples.append(kernel.eval("seconds"))
    middle = {name: statistics.median(samples) for name, samples in times.items()}
    yield ratio("200 steps with the Accelerator", middle, "by_nbstate", "bare", 1.03)
    yield ratio("200 steps with the Accelerator", middle, "by_nbstate", "by_accelerate", 1.0)


def bare() -> float:
    """Train with DistributedDataParallel and a DistributedSampler; return the loop's seconds.

    The rates are those of the other loops: a step of all ranks moves the schedule by as many steps
    as one process would have taken for their batches.
    """
    dist.init_process_group("gloo")
    model, optimizer, scheduler, data = _parts()
    model = DistributedDataParallel(model)
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, shuffle=False))
    dist.barrier()
    start = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        for _ in range(dist.get_world_size()):
            scheduler.step()
    return time.perf_counter() - start


def by_nbstate() -> float:
    """Train with nbstate's Accelerator; return the loop's seconds."""
    from nbstate import Accelerator

    return _prepared(Accelerator(cpu=True))


def by_accelerate() -> float:
    """Train with Accelerate's Accelerator; return the loop's seconds."""
    from accelerate import Accelerator

    return _prepared(Accelerator(cpu=True))


def _prepared(accelerator: Any) -> float:
    model, optimizer, scheduler, data = _parts()
    model, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(data, BATCH)
    )
    dist.barrier()
    start = time.perf_counter()
    for images, labels in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
    return time.perf_counter() - start


def _parts() -> tuple[nn.Module, torch.optim.Optimizer, Any, TensorDataset]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    size = STEPS * BATCH * 2
    data = TensorDataset(torch.randn(size, FEATURES), torch.randint(10, (size,)))
    return model, optimizer, scheduler, data
