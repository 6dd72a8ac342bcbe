"""The kernel's ends of the pipes of every run under way, which no rank of any run may hold."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

settled = threading.Lock()
"""Held while a rank is forked: what is listed is open then, and is what it was listed as."""

_of_runs: dict[object, tuple[int, ...]] = {}


def register(run: object, ends: Iterable[int]) -> None:
    """List all ends of one run, in place of those listed before. `settled` is held."""
    _of_runs[run] = tuple(ends)


def unregister(run: object) -> None:
    """Strike a run off before its ends are closed: another's may get their numbers."""
    with settled:
        _of_runs.pop(run, None)


def listed() -> tuple[int, ...]:
    """Return the ends of every run. `settled` is held."""
    return tuple(end for ends in _of_runs.values() for end in ends)
