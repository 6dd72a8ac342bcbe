"""A tiny process that outlives the kernel just long enough to end what the kernel left.

A rank dies with the kernel by itself, but its children (data loader workers, tools it started)
would live on. The guard reads a pipe that the kernel holds open: the ranks' process groups, a line
each, and a last line once the run is over. The pipe's end without that line means that the kernel
died. Then the groups go too, and on Linux the programs that carry the run's mark in their
environment: those that a rank started in sessions of their own.

It is the system's shell, started without a fork of the kernel: a millisecond, a megabyte. The
script is constant; the mark is an argument, not text of it, and the groups are data.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

_OVER = b"over\n"
_SCRIPT = """
groups=
while read -r line; do
    [ "$line" = over ] && exit 0
    groups="$groups $line"
done
for group in $groups; do kill -KILL "-$group"; done
for file in $(grep -lsF -- "$1" /proc/[0-9]*/environ); do
    pid=${file#/proc/}
    kill -KILL "${pid%/environ}"
done
"""


class Guard:
    """Watches over what a run starts until `dismiss` is called or the kernel dies.

    To be made before the first rank: it gets ready on a core that is still free.

    Parameters
    ----------
    mark
        What only this run's processes have in their environment, as ``NAME=value``.
    """

    def __init__(self, mark: str) -> None:
        # A session of its own: no interrupt of the kernel's process group ends the guard.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "nbstate-guard", mark],
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

    def watch(self, group: int) -> None:
        """Watch over one more process group."""
        self._tell(f"{group}\n".encode())

    def dismiss(self) -> None:
        """The run is over and its ranks are gone: end without a deed."""
        self._tell(_OVER)
        self._pipe.close()

    def wait(self) -> None:
        """Return once the guard is gone, which it is soon after it was dismissed."""
        self._process.wait()

    def _tell(self, line: bytes) -> None:
        # Suppressed: somebody ended the guard, and there is nothing left that guards.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe.fileno(), line)
