"""Which way to start the ranks of a run, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nbstate import devices
from nbstate.start.fork import Fork

if TYPE_CHECKING:
    from nbstate.options import LaunchOptions
    from nbstate.rank.call import Call
    from nbstate.start import Start


def choose_start(call: Call, options: LaunchOptions) -> tuple[Start, list[str]]:
    """Return how the ranks start, and what the user should know about it.

    Raises
    ------
    RuntimeError
        Forking was insisted on where it cannot work.
    UnpicklableError
        Something cannot travel to a fresh process; the message names it.
    """
    method, why = _method(options)
    if method == "fork":
        return Fork(call), why
    from nbstate.start.fresh import Fresh

    start = Fresh(method, call)
    return start, why + start.notes


def _method(options: LaunchOptions) -> tuple[str, list[str]]:
    used = None if options.cpu else devices.woken()
    wanted = options.start_method
    if wanted == "fork" and used is not None:
        raise RuntimeError(
            f"start_method='fork': this kernel has already used {used}, which a forked rank cannot "
            "use; leave start_method out, and ranks start in fresh processes"
        )
    if wanted == "fork" and sys.platform == "win32":
        raise RuntimeError("start_method='fork': Windows cannot fork; leave start_method out")
    if wanted != "auto":
        return wanted, []
    if sys.platform == "win32":
        return "spawn", []
    if sys.platform == "darwin":
        return "forkserver", []  # its system libraries do not survive a fork
    if used is not None:
        return "forkserver", [
            f"{used} is in use in this kernel: the ranks are fresh processes; no restart is needed"
        ]
    return "fork", []
