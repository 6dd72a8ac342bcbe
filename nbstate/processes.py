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
