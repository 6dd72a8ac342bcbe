"""What torch's C++ code says on stderr by itself.

torch reads `TORCH_CPP_LOG_LEVEL` once, when it is loaded, and a forked rank has it loaded: here its
threshold is changed in the running process.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_ERROR = 2
"""Severity of an error in torch; warnings have 1."""

_LIBRARIES = {"linux": "libc10.so", "darwin": "libc10.dylib"}

_before: int | None = None


def hush() -> None:
    """Have torch tell of errors only, no more of warnings, until `speak`."""
    global _before
    level = _level()
    if level is not None and _before is None:
        _before, level.value = level.value, max(level.value, _ERROR)


def speak() -> None:
    """Have torch tell again what it told before `hush`."""
    global _before
    if _before is not None and (level := _level()) is not None:
        level.value, _before = _before, None


def _level() -> ctypes.c_int | None:
    torch = sys.modules.get("torch")
    if torch is None or sys.platform not in _LIBRARIES:
        return None
    library = Path(torch.__file__ or "").parent / "lib" / _LIBRARIES[sys.platform]
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # a build that logs in another way
        return None
