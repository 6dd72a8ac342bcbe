"""Who woke an accelerator in this process: which line, cell or import.

Watched from `import nbstate` on. torch calls back when it opens CUDA, so the very line is known;
what else wakes a device, in torch or below it, is noticed at the end of its cell.
"""

from __future__ import annotations

import sys
from typing import Any

# Packages on record for waking a device when they are imported.
_SUSPECTS = ("bitsandbytes", "cupy", "deepspeed", "jax", "tensorflow", "torchao", "unsloth", "vllm")

_TOO_EARLY = "before nbstate was imported"


class Watch:
    """Remembers the first who woke an accelerator."""

    def __init__(self) -> None:
        self._found = ""
        self._imported: set[str] = set()
        self._sees_cells = False
        self._called_by_torch = False

    def begin(self) -> None:
        """Watch from now on: the cells of a notebook, and torch once it is there."""
        if not {"IPython", "torch"} & sys.modules.keys():
            return  # neither is here to be watched, and the import shall cost nothing
        from nbstate.environment import running_shell

        shell = running_shell()
        if shell is not None and not self._sees_cells:
            self._sees_cells = True
            shell.events.register("post_run_cell", self._after_cell)
        self._look(_TOO_EARLY)

    @property
    def waker(self) -> str:
        """Who it was, such as ``Cell In[3], line 2, in <module>: x.cuda()``; '' where unknown."""
        if not self._found and self._sees_cells:
            self._look("this cell")
        return self._found

    def _after_cell(self, result: Any) -> None:
        self._look(f"Cell In[{result.execution_count}]")

    def _look(self, where: str) -> None:
        imported = {name for name in _SUSPECTS if name in sys.modules}
        new, self._imported = imported - self._imported, imported
        self._have_torch_call()
        if not self._found:
            from nbstate import devices

            if devices.woken() is not None:
                hint = f", by its import of {' or '.join(sorted(new))}" if new else ""
                self._found = where + hint

    def _have_torch_call(self) -> None:
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        queue = getattr(cuda, "_lazy_call", None)  # what torch's own modules queue for that moment
        if queue is not None and not self._called_by_torch and not cuda.is_initialized():
            self._called_by_torch = True
            queue(self._cuda_is_opened)

    def _cuda_is_opened(self) -> None:
        from nbstate.rank import failure

        self._found = self._found or failure.where_of(sys._getframe())


watch = Watch()
"""The watch of this process."""
