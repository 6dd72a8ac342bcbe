"""A rank's tie to its kernel: it dies with it, and holds nothing that is only the kernel's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from multiprocessing import util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def follow(kernel_pid: int | None) -> None:
    """Lead a process group of its own, and end when the kernel ends, however it ends.

    The signal is bound to the thread that forked this process, which therefore lives as long as
    its ranks (prctl(2), PR_SET_PDEATHSIG). Where there is no such call, the job's guard does it.
    `kernel_pid` is None for a rank whose parent is not the kernel but the kernel's fork server.
    """
    os.setpgid(0, 0)
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if kernel_pid not in (None, os.getppid()):  # it died before the line above could take effect
        os._exit(1)


def spare_the_tracker(group: int) -> None:
    """Have multiprocessing's resource tracker, if this process starts one, live on after it.

    It goes to the kernel's process group, `group`.

    It removes the semaphores and shared memory that its process has left. It would be ended with
    the rank's process group, or by the mark of the run, before it could.
    """
    start = util.spawnv_passfds

    def spawnv_passfds(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        if not any("resource_tracker" in str(arg) for arg in args):
            return int(start(path, args, passfds))
        with _out_of_the_group(group):
            return int(start(path, args, passfds))

    util.spawnv_passfds = spawnv_passfds  # typed more loosely there


@contextlib.contextmanager
def _out_of_the_group(group: int) -> Iterator[None]:
    ours = {name: text for name, text in os.environ.items() if name.startswith("NBSTATE_")}
    for name in ours:
        del os.environ[name]
    with contextlib.suppress(PermissionError):  # the kernel is gone
        os.setpgid(0, group)
    try:
        yield
    finally:
        os.setpgid(0, 0)
        os.environ.update(ours)


def let_go(descriptors: Sequence[int]) -> None:
    """Hold neither the kernel's ends of pipes nor its ports.

    Each is covered with the null device instead of closed, so that its number cannot be given to
    another file and then be closed by the object that owned it. Which are ports is found out here:
    in the kernel, a number may soon be another file's.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (*descriptors, *_ports()):
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _ports() -> list[int]:
    """Return the descriptors of this process that listen for connections."""
    # Not by pathlib, which makes an object for each.
    opened = map(int, os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))  # noqa: PTH208
    # Not by a socket object: to make one may change the socket, if a default timeout is set.
    found, size = ctypes.c_int(), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    asked = socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(found), ctypes.byref(size)
    ask = _libc.getsockopt
    return [number for number in opened if ask(number, *asked) == 0 and found.value]
