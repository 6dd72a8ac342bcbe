"""What every rank would import for itself, imported once by what it is forked from.

torch imports its compiler when the first optimizer or DDP model is made, whether anything is to be
compiled or not. That takes one to two seconds of CPU time, in every rank of every launch, unless
the kernel, or the template of fresh ranks, has it. Importing it wakes no device.
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType, ModuleType
from typing import Any

from nbstate import baggage

COMPILER = "torch._dynamo"
_NEED_IT = ("torch.optim", "torch.nn.parallel", "torch.distributed.fsdp", "nbstate.train")
_CALLED = {"optim", "DistributedDataParallel", "fully_shard", "Accelerator"}


def load(function: Any) -> None:
    """Import the states, and torch's compiler if it is needed."""
    importlib.import_module("nbstate.state")
    if needs_compiler(function):
        importlib.import_module(COMPILER)


def needs_compiler(function: Any) -> bool:
    """Tell whether this process has torch's compiler, or the function looks as if it trains."""
    if COMPILER in sys.modules:
        return True
    return any(_trains(name, value) for name, value in baggage.reads(function))


def _trains(name: str, value: Any) -> bool:
    if name in _CALLED or name.startswith(_NEED_IT):
        return True
    kind = type(value)  # a proxy that stands for another object is asked nothing
    if issubclass(kind, ModuleType):
        return str(value.__name__).startswith(_NEED_IT)
    return issubclass(kind, (type, FunctionType)) and str(value.__module__).startswith(_NEED_IT)
