"""How much memory there is and what was used: what explains a rank that was killed."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def limit() -> tuple[int, str]:
    """Return the memory limit in bytes, and whose it is: the container's or the machine's."""
    total = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        found = _number(_CGROUP / name)
        if found is not None and found < total:
            return found, "container"
    return total, "machine"


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
