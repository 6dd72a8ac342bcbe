"""What the ranks of every contender do."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

TENSOR_VALUES = 64 << 20  # 256 MiB of float32
DDP_STEPS = 200


def nothing() -> None:
    """Return at once, without a group."""


def group_up() -> int:
    """Bring a gloo group up, connections included, and nothing more."""
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    return dist.get_rank()


def print_lines(count: int, out: TextIO | None = None) -> None:
    """Print `count` numbered lines of 80 characters."""
    for i in range(count):
        print(f"{i:010d} {'x' * 69}", file=out or sys.stdout)


def big_tensor() -> torch.Tensor:
    """Make a tensor of 256 MiB."""
    return torch.ones(TENSOR_VALUES)


def fail_on_rank_1() -> None:
    """Raise on rank 1, with the time in the message, while the others are in a barrier."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError(f"raised at {time.monotonic()}")
    dist.barrier()


def ddp_loop() -> float:
    """Train a small MLP and print at each step; return the seconds of the loop."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(64, 64), torch.randint(10, (64,))
    dist.barrier()
    start = time.perf_counter()
    for step in range(DDP_STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")
    return time.perf_counter() - start


def private_growth(read: Callable[[], object]) -> int:
    """Return by how many bytes this process's own memory grows when `read` is called."""
    process = psutil.Process()
    before = process.memory_full_info().uss
    read()
    return process.memory_full_info().uss - before


def wait_for(path: str) -> None:
    """Wait, silent, until somebody writes to the named pipe at `path`."""
    with open(path) as pipe:  # noqa: PTH123
        pipe.read()


if __name__ == "__main__":  # under torchrun
    print(f"loop {ddp_loop()} s")
