"""torch.compile in a rank whose kernel has compiled before."""

from __future__ import annotations

import sys
from typing import Any


def forget_the_kernels_pools() -> None:
    """Have the compiler make its helpers anew: the threads of the kernel's are not in a rank.

    torch itself forgets the processes after a fork, but not the threads, and waits for ever.
    """
    module: Any = sys.modules.get("torch._inductor.async_compile")
    if module is not None:
        module.AsyncCompile.pool.cache_clear()
        module.AsyncCompile.process_pool.cache_clear()
