"""Pools of helpers that the kernel has made: their threads are not in a forked rank.

Who gives them work there waits for ever. So each is made anew by the rank that needs it.
"""

from __future__ import annotations

import sys
from typing import Any

_kernels: list[Any] = []
"""Pools that are kept here: at its end one would wake the kernel's threads through a pipe."""


def forget_the_kernels() -> None:
    """Have the compiler of torch and joblib make their pools anew."""
    compiler: Any = sys.modules.get("torch._inductor.async_compile")
    if compiler is not None:  # torch itself forgets the processes after a fork, but not the threads
        compiler.AsyncCompile.pool.cache_clear()
        compiler.AsyncCompile.process_pool.cache_clear()
    for name in ("joblib.externals.loky.reusable_executor", "loky.reusable_executor"):
        loky: Any = sys.modules.get(name)
        if loky is not None:
            _kernels.append(loky._executor)
            loky._executor = None
