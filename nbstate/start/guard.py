"""A tiny process that outlives the kernel just long enough to end what the kernel left.

A rank dies with the kernel by itself, but its children (data loader workers, tools it started)
would live on. The guard waits on a pipe that the kernel holds open. A line on it means that the run
is over; its end without a line means that the kernel died, and the ranks' process groups go too.

It is the system's shell, started without a fork of the kernel: a millisecond, a megabyte. The
script is constant; the process groups are arguments, not text of it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPT = 'read -r word && exit 0; for group in "$@"; do kill -KILL "-$group"; done'


class Guard:
    """Watches over the process groups `groups` until `dismiss` is called or the kernel dies."""

    def __init__(self, groups: Sequence[int]) -> None:
        # A session of its own: no interrupt of the kernel's process group ends the guard.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "nbstate-guard", *map(str, groups)],
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
