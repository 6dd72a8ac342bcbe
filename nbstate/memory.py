"""How much memory there is and what was used: what explains a rank that was killed."""

from __future__ import annotations

import mmap
import shutil
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_SHARED = Path("/dev/shm")


def limit() -> tuple[int, str]:
    """Return the memory limit in bytes, and whose it is: the container's or the machine's."""
    total = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        found = _number(_CGROUP / name)
        if found is not None and found < total:
            return found, "container"
    return total, "machine"


def free() -> int:
    """Return how many bytes can still be used here: by the machine, and by the container."""
    available = int(psutil.virtual_memory().available)
    used = _number(_CGROUP / "memory.current")
    most, whose = limit()
    if whose == "machine" or used is None:
        return available
    return max(0, min(available, most - used + _reclaimable()))


def _reclaimable() -> int:
    """Bytes of the container's memory that only cache files, and are given up when asked for."""
    for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines():
        name, _, size = line.partition(" ")
        if name == "inactive_file":
            return int(size)
    return 0


def own() -> int:
    """Return how many bytes of memory this process uses."""
    try:
        # Not by pathlib: every rank does this on its way to the user's function.
        with open("/proc/self/statm", "rb", buffering=0) as counts:  # noqa: PTH123
            pages = counts.read().split()[1]
    except OSError:  # not Linux
        return int(psutil.Process().memory_info().rss)
    return int(pages) * mmap.PAGESIZE


def shared() -> tuple[int, int] | None:
    """Return how many bytes of /dev/shm are free, and its size; None where there is none."""
    if not _SHARED.exists():
        return None
    space = shutil.disk_usage(_SHARED)
    return space.free, space.total


def kills_for_memory() -> int | None:
    """Return how often the kernel has killed a process of this cgroup for memory, if it counts."""
    for name in ("memory.events", "memory/memory.oom_control"):
        try:
            lines = (_CGROUP / name).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return None


def of_shared_memory() -> str:
    """Return what is free in /dev/shm, as the end of a sentence about a bus error, or ``""``."""
    space = shared()
    if space is None:
        return ""
    free, size = map(in_words, space)
    return (
        f"; {_SHARED} has {free} of {size} free; "
        "writing to it when it is full ends a process this way"
    )


def in_words(size: int) -> str:
    """Return a size in bytes as people say it, such as ``1.5 GiB``."""
    number = float(size)
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such limit here, or the word "max"
        return None
