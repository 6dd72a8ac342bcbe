"""Ranks on a TPU, or on what else torch_xla drives.

A rank is a process like any other, with the capture, interrupts and failures of every launch. In it
torch_xla sets itself up as in a process of its own `spawn`, and as other launchers have it do.
`spawn` itself serves no notebook: it returns nothing, runs a single process in the kernel, which
then keeps the TPU, and others in worker threads of a pool, where no interrupt reaches the function
and its output and causes are lost.

The kernel never opens the runtime: a TPU lets one process in, for as long as that process lives.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from nbstate import devices
from nbstate.state.xla import in_use

if TYPE_CHECKING:
    from nbstate.options import LaunchOptions


def needed(options: LaunchOptions) -> bool:
    """Whether ranks run on torch_xla's device."""
    return in_use() and not options.cpu


def check(ranks: int, used: str | None) -> None:
    """Refuse a number of ranks that torch_xla cannot serve, and a TPU that the kernel has taken.

    Raises
    ------
    ValueError
        `ranks` is neither 1 nor all; the message names both.
    RuntimeError
        The kernel has opened the TPU.
    """
    on_tpu = devices.kind() == "tpu"
    there = devices.count() if on_tpu else 1
    if ranks not in (1, there):
        raise ValueError(_wrong_number(ranks, there, on_tpu=on_tpu))
    if ranks > 1 and devices.has_replicas_as_threads():
        raise ValueError(
            f"num_processes={ranks} on a TPU v2 or v3: two of its cores share a process, and a "
            "rank is a process of its own; num_processes=1 uses one core; nbstate's states work on "
            "all of them inside torch_xla.launch(train)"
        )
    if on_tpu and used == "XLA":
        raise RuntimeError(
            "this kernel has opened the TPU, which lets no other process in: restart the kernel, "
            "and use the TPU only inside the functions that are launched"
        )


def _wrong_number(ranks: int, there: int, *, on_tpu: bool) -> str:
    if on_tpu:
        return (
            f"num_processes={ranks} on a TPU with {there} cores: torch_xla uses 1 of them or all "
            f"{there}; leave num_processes out for all"
        )
    device = os.environ.get("PJRT_DEVICE")
    return (
        f"num_processes={ranks} with PJRT_DEVICE={device!r}: torch_xla has 1 device; "
        f"num_processes=1, or cpu=True for {ranks} ranks on the CPU without XLA"
    )


def set_up() -> None:
    """Be one of torch_xla's processes; called in a rank, and opens the device."""
    pjrt = importlib.import_module("torch_xla._internal.pjrt")
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if size == 1:
        pjrt.initialize_singleprocess()
    else:
        pjrt.initialize_multiprocess(rank, size)
        # Kept from now on: torch.compile then sees constants in them.
        importlib.import_module("torch_xla.runtime")._init_world_size_ordinal()
