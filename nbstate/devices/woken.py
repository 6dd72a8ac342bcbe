"""Which accelerator runtimes this process has woken, found out without waking one."""

from __future__ import annotations

import ctypes
import os
import sys
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
    library = _loaded("libcuda.so.1")
    if library is None:
        return False
    context = ctypes.c_void_p()
    code: int = library.cuCtxGetCurrent(ctypes.byref(context))
    return code != _CUDA_ERROR_NOT_INITIALIZED


def _loaded(name: str) -> ctypes.CDLL | None:
    """A shared library that this process has loaded already; loads none."""
    if sys.platform != "linux":
        return None
    try:
        # With RTLD_NOLOAD the loader only looks through what is loaded (dlopen(3)).
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
