"""Threads of a rank that serve it as long as it lives."""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def run(function: Callable[..., None], *args: Any) -> None:
    """Call a function that never returns beside the user's.

    `threading.Thread.start` would wait until the thread runs, behind every other rank that is
    starting: on busy cores, milliseconds of each launch.
    """
    _thread.start_new_thread(function, args)
