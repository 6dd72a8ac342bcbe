"""Decisions that all ranks take together, and small helpers for a training loop."""

from __future__ import annotations

import functools
import gc
import inspect
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbstate import operations
from nbstate.state import PartialState
from nbstate.train.core import Core

if TYPE_CHECKING:
    from collections.abc import Callable


class Control(Core):
    """Flags that one rank raises and all ranks see at the same step."""

    _triggered: bool
    _stop_reason: str | None
    _stopped: dict[int, str]

    def set_trigger(self) -> None:
        """Raise a flag on this rank, for `check_trigger` to be seen by all.

        Examples
        --------
        >>> if not torch.isfinite(loss):
        ...     accelerator.set_trigger()
        >>> accelerator.check_trigger()
        False
        """
        self._triggered = True

    def check_trigger(self) -> bool:
        """Whether any rank has raised its flag since the last check: a collective.

        Examples
        --------
        >>> accelerator.set_trigger()  # on any rank
        >>> accelerator.check_trigger(), accelerator.check_trigger()
        (True, False)
        """
        flag = torch.tensor(float(self._triggered), device=self.device)
        self._triggered = False
        return bool(operations.reduce(flag, "sum"))

    def request_stop(self, reason: str) -> None:
        """Ask all ranks to leave the loop at their next `should_stop`.

        Parameters
        ----------
        reason : str
            What `stop_reasons` will say for this rank.

        Examples
        --------
        >>> accelerator.request_stop("good enough")
        >>> accelerator.should_stop(), accelerator.stop_reasons
        (True, {0: 'good enough'})
        """
        self._stop_reason = str(reason)

    def should_stop(self) -> bool:
        """Whether any rank has asked to stop; all ranks hear the same: a collective.

        Once true it stays true, so nested loops can be left one after the other.

        Examples
        --------
        >>> for step, batch in enumerate(loader):
        ...     if step == 2:
        ...         accelerator.request_stop("good enough")
        ...     if accelerator.should_stop():
        ...         break
        >>> step, accelerator.stop_reasons
        (2, {0: 'good enough'})
        """
        if not self._stopped:
            flag = torch.tensor(float(self._stop_reason is not None), device=self.device)
            if operations.reduce(flag, "sum"):
                reasons = operations.gather_object(self._stop_reason, flatten=False)
                said = enumerate(reasons)
                self._stopped = {rank: reason for rank, reason in said if reason is not None}
        return bool(self._stopped)

    @property
    def stop_reasons(self) -> dict[int, str]:
        """Why the ranks that asked to stop did: rank to reason; empty before `should_stop`."""
        return dict(self._stopped)


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed the generators of Python, numpy and torch.

    Parameters
    ----------
    seed : int
        From 0 up.
    device_specific : bool
        Add the rank, so that ranks draw different numbers. Models are then to be made before, or
        to be prepared by DDP, which takes rank 0's weights.
    deterministic : bool
        Have torch use algorithms that give the same numbers every time, and fail where it has none.

    Examples
    --------
    >>> set_seed(0)
    >>> torch.rand(1)
    tensor([0.4963])
    """
    if device_specific:
        seed += PartialState().process_index
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002, code that draws from the global one relies on it
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None, starting_batch_size: int = 128
) -> Any:
    """Decorate a function so that it runs with the largest batch size that fits into memory.

    The function takes the batch size first. Whenever it runs out of memory, it is called again with
    half of it. All ranks must run out alike, as they do where batches are equal.

    Parameters
    ----------
    function : callable, optional
        Left out, this returns the decorator.
    starting_batch_size : int
        The size to begin with.

    Raises
    ------
    RuntimeError
        Not even one sample fits.

    Examples
    --------
    >>> @find_executable_batch_size(starting_batch_size=8)
    ... def train(batch_size, memory):
    ...     if batch_size > memory:
    ...         raise MemoryError
    ...     return batch_size
    >>> train(3)
    2
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size, starting_batch_size=starting_batch_size
        )
    name = getattr(function, "__name__", "function")
    if next(iter(inspect.signature(function).parameters), None) is None:
        raise TypeError(f"{name}() must take the batch size as its first argument")

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        batch_size = starting_batch_size
        while batch_size > 0:
            try:
                return function(batch_size, *args, **kwargs)
            except Exception as error:
                if not _out_of_memory(error):
                    raise
            # Outside of the handler: there the exception keeps the function's tensors alive.
            release_memory()
            batch_size //= 2
        raise RuntimeError(f"{name}() ran out of memory even with batch_size=1")

    return run


def _out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    told = ("out of memory", "can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in told)


def release_memory() -> None:
    """Hand memory that nothing refers to back to the device."""
    gc.collect()
    for name in ("cuda", "xpu", "mps"):
        runtime = getattr(torch, name, None)
        # Asking a device that has not been used would wake it.
        if runtime is not None and getattr(runtime, "is_initialized", lambda: False)():
            runtime.empty_cache()
