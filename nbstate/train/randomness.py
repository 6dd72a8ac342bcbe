"""The state of every random generator of this process, saved or shared with the other ranks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbstate.operations import broadcast_object_list

if TYPE_CHECKING:
    from collections.abc import Iterable

# What Accelerate calls the generators; that of the sampler is always shared.
_KINDS = ("generator", "torch", "cuda", "xpu")


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


def checked_kinds(given: Iterable[Any] | None) -> tuple[str, ...]:
    """The names of generators, from text or from Accelerate's enumeration.

    Raises
    ------
    ValueError
        One is unknown.
    """
    kinds = tuple(str(getattr(each, "value", each)) for each in given or ("generator",))
    for kind in kinds:
        if kind not in _KINDS:
            allowed = ", ".join(map(repr, _KINDS))
            raise ValueError(f"rng_types has {kind!r}; it takes {allowed}")
    return kinds


def share_random_state(kinds: Iterable[str]) -> None:
    """Give every rank the generators of these kinds as rank 0 has them: a collective."""
    wanted = [kind for kind in kinds if kind != "generator"]
    if wanted:
        own = random_state()
        (shared,) = broadcast_object_list([{kind: own[kind] for kind in wanted if kind in own}])
        set_random_state({**own, **shared})
