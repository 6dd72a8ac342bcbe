"""The three states: PartialState, AcceleratorState and GradientState, in any process."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbstate.state.kinds import DistributedType
from nbstate.state.life import fresh_states, reset_all
from nbstate.state.partial import PartialState, is_main_process
from nbstate.state.scopes import enter_replica

if TYPE_CHECKING:
    from nbstate.state.accelerator import AcceleratorState
    from nbstate.state.gradient import GradientState
    from nbstate.state.logger import get_logger

__all__ = [
    "AcceleratorState",
    "DistributedType",
    "GradientState",
    "PartialState",
    "enter_replica",
    "fresh_states",
    "get_logger",
    "is_main_process",
    "reset_all",
]

# Loaded at first use: a launch needs the others only, and should not wait for these.
_LATER = {
    "AcceleratorState": "nbstate.state.accelerator",
    "GradientState": "nbstate.state.gradient",
    "get_logger": "nbstate.state.logger",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'nbstate.state' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value
