"""Whose states a thread sees: the process's, or those of the replica it belongs to.

On a TPU v2 or v3 replicas are threads of one process, and each has its own rank and states.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SCOPE = "_nbstate_scope"


class Scope:
    """The lives of one process, or of one replica thread and its helpers."""

    def __init__(self) -> None:
        self.lives: dict[type, Any] = {}
        # The first construction joins a process group: two threads must not both do it.
        self.lock = threading.RLock()


_process = Scope()


def scope() -> Scope:
    """The scope of the calling thread."""
    found: Scope = getattr(threading.current_thread(), _SCOPE, _process)
    return found


def is_replica() -> bool:
    """Whether the calling thread belongs to a replica that has states of its own."""
    return scope() is not _process


def enter_replica() -> None:
    """Give the calling thread, and every thread that it starts from now on, states of its own.

    For processes whose replicas are threads, as those of a TPU v2 or v3. Python does not tell which
    thread started another, so from the first call on a starting thread is handed its parent's
    scope.
    """
    if not hasattr(threading.Thread.start, _SCOPE):
        setattr(threading.Thread, "start", _handing_down(threading.Thread.start))  # noqa: B010
    setattr(threading.current_thread(), _SCOPE, Scope())


def _handing_down(
    start: Callable[[threading.Thread], None],
) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def start_in_scope(thread: threading.Thread) -> None:
        if is_replica():
            setattr(thread, _SCOPE, scope())
        start(thread)

    setattr(start_in_scope, _SCOPE, True)
    return start_in_scope


def notice_replica() -> None:
    """Enter a replica where torch_xla's own launcher made one, which tells nobody which it made."""
    torch_xla: Any = sys.modules.get("torch_xla")
    in_main_thread = threading.current_thread() is threading.main_thread()
    if torch_xla is None or in_main_thread or is_replica():
        return
    if torch_xla._XLAC._xla_runtime_is_initialized():
        runtime = importlib.import_module("torch_xla.runtime")
        if int(runtime.addressable_device_count()) > 1:
            enter_replica()
