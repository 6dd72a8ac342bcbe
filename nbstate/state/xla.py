"""torch_xla, asked for as little as possible: opening a TPU is for good, and for one process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from nbstate import devices
from nbstate.state.place import Place
from nbstate.state.scopes import is_replica


def in_use() -> bool:
    """Whether XLA drives this process's device. Opens nothing."""
    # Importing torch_xla is enough to set PJRT_DEVICE=CPU, on any machine without a TPU.
    if os.environ.get("PJRT_DEVICE", "CPU") == "CPU":
        return _is_open() or devices.kind() == "tpu"
    return importlib.util.find_spec("torch_xla") is not None


def find_place() -> Place | None:
    """The runtime's ordinal where this process is a rank or has opened the device, else None."""
    runtime = importlib.import_module("torch_xla.runtime")
    if not (is_replica() or _is_launched() or _is_open()):
        return None
    return Place(
        rank=int(runtime.global_ordinal()),
        world_size=int(runtime.world_size()),
        local_rank=int(runtime.local_ordinal()),
        rendezvous=False,
    )


def device() -> Any:
    """The device of this replica; opens it."""
    return importlib.import_module("torch_xla").device()


def mark_step() -> None:
    """Run what has been traced so far."""
    importlib.import_module("torch_xla").sync()


def exchange(tag: str, payload: bytes = b"") -> list[bytes]:
    """Every replica's payload in the order of ranks, once all have come."""
    xla_model = importlib.import_module("torch_xla.core.xla_model")
    return list(xla_model.rendezvous(tag, payload))


def gather(tensor: Any) -> Any:
    """Every replica's tensor, joined along the first dimension."""
    return importlib.import_module("torch_xla.core.xla_model").all_gather(tensor, dim=0)


def sum_up(tensor: Any) -> None:
    """Make the tensor the sum over all replicas."""
    importlib.import_module("torch_xla.core.xla_model").all_reduce("sum", [tensor])


def broadcast(tensor: Any, from_process: int) -> None:
    """Make the tensor that of one replica."""
    xla_model = importlib.import_module("torch_xla.core.xla_model")
    xla_model.collective_broadcast([tensor], root_ordinal=from_process)


def _is_launched() -> bool:
    return os.environ.get("FORK_LAUNCHED") == "1" or "PJRT_LOCAL_PROCESS_RANK" in os.environ


def _is_open() -> bool:
    torch_xla = sys.modules.get("torch_xla")
    return torch_xla is not None and bool(torch_xla._XLAC._xla_runtime_is_initialized())
