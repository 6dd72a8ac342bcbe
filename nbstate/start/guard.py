"""A tiny process that outlives the kernel just long enough to end what the kernel left.

A rank dies with the kernel by itself, but its children (data loader workers, tools it started)
would live on. The guard waits on a pipe that the kernel holds open. A line on it means that the run
is over; its end without a line means that the kernel died. Then the ranks' process groups go too,
and on Linux the programs that carry the run's mark in their environment: those that a rank started
in sessions of their own.

It is the system's shell, started without a fork of the kernel: a millisecond, a megabyte. The
script is constant; the process groups and the mark are arguments, not text of it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPT = """
read -r word && exit 0
mark=$1
shift
for group in "$@"; do kill -KILL "-$group"; done
for file in $(grep -lsF -- "$mark" /proc/[0-9]*/environ); do
    pid=${file#/proc/}
    kill -KILL "${pid%/environ}"
done
"""


class Guard:
    """Watches over what a run has started until `dismiss` is called or the kernel dies.

    Parameters
    ----------
    groups
        The ranks' process groups.
    mark
        What only this run's processes have in their environment, as ``NAME=value``.
    """

    def __init__(self, groups: Sequence[int], mark: str) -> None:
        # A session of its own: no interrupt of the kernel's process group ends the guard.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "nbstate-guard", mark, *map(str, groups)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    @property
    def descriptor(self) -> int:
        """The kernel's end of the pipe, which no rank may hold."""
        return self._pipe.fileno()

    def dismiss(self) -> None:
        """The run is over and its ranks are gone: end without a deed."""
        # Suppressed: somebody ended the guard, and there is nothing left to guard.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe.fileno(), b"over\n")
        self._pipe.close()
        self._process.wait()
