"""Other processes, by psutil: who descends from whom, and how to end one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

DYING = 2.0
"""Seconds that a killed process may take to end; one that waits for a disk may take for ever."""


def descendants(pid: int) -> list[psutil.Process]:
    """Return the living children of a process, and theirs; none where that cannot be found out."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except (psutil.Error, OSError):  # it is gone; or no file can be opened to look
        return []


def started_by(pid: int) -> list[psutil.Process]:
    """Return the descendants of a rank, but for the tracker of what it leaves in shared memory."""
    ours = os.getpgrp()  # where `rank.parent` has put it, and nothing else
    return [process for process in descendants(pid) if _group(process) != ours]


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def kill(process: psutil.Process) -> None:
    """End a process at once. psutil makes sure that its number is not another's by now."""
    with contextlib.suppress(psutil.Error):
        process.kill()


def usage(pid: int) -> tuple[int, float] | None:
    """Return a process's resident memory in bytes and its CPU time in seconds; None if gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return int(process.memory_info().rss), times.user + times.system
    except (psutil.Error, OSError):
        return None


def cpu_of_family(pid: int) -> float:
    """Return the CPU time, in seconds, of what a process has started and what that has started."""
    used = [usage(child.pid) for child in descendants(pid)]
    return sum(found[1] for found in used if found is not None)


def pids() -> frozenset[int]:
    """Return the numbers of all processes there are."""
    return frozenset(psutil.pids())


def kill_left(mark: str, groups: Collection[int], before: frozenset[int]) -> None:
    """End every process that a run has left, and return once all have ended.

    Programs in sessions of their own belong to no process group of a rank and, once the rank is
    dead, are no longer its children either: they are known by their environment, of which only
    Linux tells.

    Parameters
    ----------
    mark
        What every program of the run has in its environment, as ``NAME=value``.
    groups
        The process groups of its ranks.
    before
        Processes that were there before the run, and need no look.
    """
    ending: list[int] = []
    for pid in pids() - before if sys.platform == "linux" else ():
        # Suppressed: it has ended meanwhile, or belongs to somebody else, or cannot be waited for.
        with contextlib.suppress(OSError, AttributeError):
            if os.getpgid(pid) in groups or _is_marked(pid, mark):
                os.kill(pid, signal.SIGKILL)
                ending.append(os.pidfd_open(pid))
    _see_end(ending)


def _see_end(ending: Iterable[int]) -> None:
    """Wait for the ends of processes, of which these are descriptors, and close those."""
    deadline = time.monotonic() + DYING
    for descriptor in ending:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(descriptor)


def _is_marked(pid: int, mark: str) -> bool:
    return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
