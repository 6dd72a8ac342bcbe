"""The state of every random generator of this process."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """The generators of Python, numpy and torch, its accelerators' where they are in use.

    Made of plain values and tensors, so that it can be read back without running code.
    """
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002, the global generator is what is saved
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    for name in ("cuda", "xpu"):
        runtime = getattr(torch, name, None)
        # Asking a device that has not been used would wake it.
        if runtime is not None and runtime.is_initialized():
            state[name] = runtime.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Set the generators as `random_state` found them."""
    kind, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    for name in ("cuda", "xpu"):
        if name in state and getattr(torch, name).is_available():
            getattr(torch, name).set_rng_state(state[name])
