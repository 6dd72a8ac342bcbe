"""The control groups of this process: what a container, a batch system or systemd allows it.

A limit of any group on the way to the root counts. Linux has two versions of this: one tree for
all controllers, or, before, a tree for each.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def groups(controller: str) -> list[Path]:
    """Return the folders of the groups for a controller such as ``memory``, its own first."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return _up_to(_ROOT / controller, path)  # a link where several share a tree
        if not controllers:
            found = _up_to(_ROOT, path)
    return found


def _up_to(root: Path, path: str) -> list[Path]:
    own = root / path.lstrip("/")
    if not own.is_dir():  # the name from outside of a container, whose own group is its root
        own = root
    return [own, *(parent for parent in own.parents if parent.is_relative_to(root))]


def number(file: Path) -> int | None:
    """Return the number that a file holds; None where there is none, such as the word ``max``."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def entry(file: Path, *names: str) -> int | None:
    """Return what stands beside one of these names in a file of names and numbers, or None."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = dict(line.split()[:2] for line in lines if " " in line)
    return next((int(found[name]) for name in names if name in found), None)
