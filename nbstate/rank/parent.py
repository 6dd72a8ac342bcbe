"""A rank's tie to its kernel: it dies with it, and holds nothing that is only the kernel's."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def follow(kernel_pid: int | None) -> None:
    """Lead a process group of its own, and end when the kernel ends, however it ends.

    The signal is bound to the thread that forked this process, which therefore lives as long as
    its ranks (prctl(2), PR_SET_PDEATHSIG). Where there is no such call, the job's guard does it.
    `kernel_pid` is None for a rank whose parent is not the kernel but the kernel's fork server.
    """
    os.setpgid(0, 0)
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if kernel_pid not in (None, os.getppid()):  # it died before the line above could take effect
        os._exit(1)


def let_go(descriptors: Sequence[int]) -> None:
    """Hold neither the kernel's ends of pipes nor its ports.

    Each is covered with the null device instead of closed, so that its number cannot be given to
    another file and then be closed by the object that owned it.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    open_now = os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")  # noqa: PTH208 - no object for each
    ports = [number for number in map(int, open_now) if _is_listening(number)]
    for descriptor in (*descriptors, *ports):
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _is_listening(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
    except OSError:  # the descriptor of the listing itself, closed by now
        return False
    # What kind of socket it is makes no difference here, and is not asked for.
    looked_at = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        return bool(looked_at.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False
    finally:
        looked_at.detach()
