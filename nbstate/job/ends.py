"""What is open in the kernel and no rank may hold: its ends of every run's pipes, its ports."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

settled = threading.Lock()
"""Held while a rank is forked: what is listed is open then, and is what it was listed as."""

_libc = ctypes.CDLL(None)
_of_runs: dict[object, tuple[int, ...]] = {}


def register(run: object, ends: Iterable[int]) -> None:
    """List all ends of one run, in place of those listed before. `settled` is held."""
    _of_runs[run] = tuple(ends)


def unregister(run: object) -> None:
    """Strike a run off before its ends are closed: another's may get their numbers."""
    with settled:
        _of_runs.pop(run, None)


def listed() -> tuple[int, ...]:
    """Return the ends of every run. `settled` is held."""
    return tuple(end for ends in _of_runs.values() for end in ends)


def ports() -> list[int]:
    """Return this process's listening sockets. Found in the kernel, once for all ranks of a run."""
    # Not by pathlib, which makes an object for each.
    open_now = os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")  # noqa: PTH208
    return [number for number in map(int, open_now) if _is_listening(number)]


def _is_listening(descriptor: int) -> bool:
    # Not by a socket object: making one may change the socket, if a default timeout is set.
    found, size = ctypes.c_int(), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    asked = socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(found), ctypes.byref(size)
    return _libc.getsockopt(descriptor, *asked) == 0 and found.value != 0
