"""Accelerators counted and named without waking them.

A process that has opened a CUDA context cannot be forked into ranks that use CUDA, and a TPU lets
one process in. So nothing here asks a runtime: device files, environment variables, management
libraries and torch's build flags tell enough.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def kind() -> str:
    """The kind of accelerator that torch can use here, ``"cpu"`` where there is none."""
    return "cuda" if _cuda_built() and list(Path("/dev").glob("nvidia[0-9]*")) else "cpu"


def count() -> int:
    """How many accelerators this process may use; 0 where there are none."""
    if kind() == "cpu":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip()])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _cuda_built() -> bool:
    import torch

    return torch.version.cuda is not None


def woken() -> str | None:
    """The runtime that this process has woken, None while none is; asking wakes nothing."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "cuda"
    return None


def supports_fp8(kind: str, index: int) -> bool:
    """Whether a device computes in 8 bits floating point: CUDA from 8.9 on, and HPU."""
    return kind == "hpu"
