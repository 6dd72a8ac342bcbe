"""Which accelerator runtimes this process has woken, found out without waking one."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

# What cuCtxGetCurrent answers before anyone has called cuInit.
_CUDA_ERROR_NOT_INITIALIZED = 3


def woken() -> str | None:
    """The runtime that this process has woken, by name, or None; asking wakes nothing.

    torch's own flags, and CUDA's driver itself: a count of devices or another library may have
    woken it behind torch's back, and it is as lost for forked processes then.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        if torch.cuda.is_initialized():
            return "ROCm" if torch.version.hip else "CUDA"
        for kind in ("xpu", "npu", "hpu", "mtia"):
            asked = getattr(getattr(torch, kind, None), "is_initialized", None)
            if asked is not None and asked():
                return kind.upper()
    torch_xla: Any = sys.modules.get("torch_xla")
    if torch_xla is not None and torch_xla._XLAC._xla_runtime_is_initialized():
        return "XLA"
    return "CUDA's driver" if _cuda_driver_is_awake() else None


def _cuda_driver_is_awake() -> bool:
    library = _loaded("libcuda.so")
    if library is None:
        return False
    context = ctypes.c_void_p()
    code: int = library.cuCtxGetCurrent(ctypes.byref(context))
    return code != _CUDA_ERROR_NOT_INITIALIZED


def _loaded(name: str) -> ctypes.CDLL | None:
    """A shared library that this process has loaded already; loads none."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # not Linux
        return None
    if name not in maps:  # as a rule, and then there is no need to read every line
        return None
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines())
    path = next((path for path in paths if Path(path).name.startswith(name)), None)
    # Bound to what is loaded: with RTLD_NOLOAD the loader opens nothing.
    return None if path is None else ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
