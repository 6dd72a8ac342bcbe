"""Other processes, by psutil: who descends from whom, and how to end one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil


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


def kill_marked(mark: str, before: frozenset[int]) -> None:
    """End every program that was started with `mark`, such as ``NAME=value``, in its environment.

    `before` are processes that were there before any such program, and need no look.

    Programs in sessions of their own belong to no process group of a rank and, once the rank is
    dead, are no longer its children either. Only Linux tells of another process's environment.
    """
    for pid in pids() - before if sys.platform == "linux" else ():
        # Suppressed: it has ended meanwhile, or belongs to somebody else.
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
