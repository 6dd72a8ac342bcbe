"""Other processes, by psutil: who descends from whom, and how to end one."""

from __future__ import annotations

import contextlib

import psutil


def descendants(pid: int) -> list[psutil.Process]:
    """Return the living children of a process, and theirs."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


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
    except psutil.Error:
        return None


def cpu_of_family(pid: int) -> float:
    """Return the CPU time, in seconds, of what a process has started and what that has started."""
    used = [usage(child.pid) for child in descendants(pid)]
    return sum(found[1] for found in used if found is not None)
