"""How much memory there is and what was used: what explains a rank that was killed."""

from __future__ import annotations

import mmap
import shutil
from pathlib import Path

import psutil

from nbstate import cgroups

_SHARED = Path("/dev/shm")
# The two versions of control groups call the same things by different names.
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")
_KILLS = ("memory.events", "memory.oom_control")


def limit() -> tuple[int, str]:
    """Return the memory limit in bytes, and whose it is: the container's or the machine's."""
    total = int(psutil.virtual_memory().total)
    least = min((size for _, size in _limits()), default=total)
    return (least, "container") if least < total else (total, "machine")


def free() -> int:
    """Return how many bytes can still be used here: by the machine, and by the container."""
    available = int(psutil.virtual_memory().available)
    for group, size in _limits():
        used = _first_number(group, _USED)
        if used is not None:
            # Memory that only caches files is given up when asked for.
            cached = cgroups.entry(group / "memory.stat", "total_inactive_file", "inactive_file")
            available = min(available, max(0, size - used + (cached or 0)))
    return available


def _limits() -> list[tuple[Path, int]]:
    found = ((group, _first_number(group, _LIMITS)) for group in cgroups.groups("memory"))
    return [(group, size) for group, size in found if size is not None]


def _first_number(group: Path, names: tuple[str, ...]) -> int | None:
    return next((n for name in names if (n := cgroups.number(group / name)) is not None), None)


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
    """Return how often Linux has killed a process of this group for memory, if it counts."""
    counts = (
        cgroups.entry(group / name, "oom_kill")
        for group in cgroups.groups("memory")
        for name in _KILLS
    )
    return next((count for count in counts if count is not None), None)


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
