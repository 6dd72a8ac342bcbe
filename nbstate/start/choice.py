"""Which way to start the ranks of a run, and why."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from nbstate import baggage, devices, memory
from nbstate.start import xla
from nbstate.start.fork import Fork
from nbstate.woken import watch

if TYPE_CHECKING:
    from nbstate.options import LaunchOptions
    from nbstate.rank.call import Call
    from nbstate.start import Start


_USUAL_IN_DOCKER = 64 << 20
"""Bytes of /dev/shm that a container has where nothing else was asked for."""
_NAMED = 3
"""How many open files and the like are named one by one."""


def choose_start(call: Call, options: LaunchOptions, ranks: int) -> tuple[Start, list[str]]:
    """Return how the ranks start, and what the user should know about it.

    Raises
    ------
    ValueError
        torch_xla cannot serve that many ranks.
    RuntimeError
        Forking was insisted on where it cannot work, or the kernel has taken the TPU, or a fresh
        rank imports the script that launched it.
    UnpicklableError
        Something cannot travel to a fresh process; the message names it.
    """
    _check_not_imported()
    found = baggage.search(call)
    # Ranks on the CPU may be forked from a kernel that used a device, if they get nothing of it.
    used = devices.woken() if found.on_devices or not options.cpu else None
    if xla.needed(options):
        xla.check(ranks, used)
        call = replace(call, prepare=xla.set_up)
    waker = watch.waker if used is not None else ""
    method, why = choose_method(options.start_method, used, waker)
    if ranks > 1 and not options.cpu and devices.count():
        why = why + _little_shared_memory()
    if method == "fork":
        return Fork(call), why + _shared_handles(found.handles, call.function)
    from nbstate.start.fresh import Fresh

    start = Fresh(method, call, ranks, found.on_devices)
    return start, why + start.notes


def _check_not_imported() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "a fresh rank imports this script, and comes to its launch: put what is to run once, "
            'and so the launch, under if __name__ == "__main__":'
        )


def choose_method(wanted: str, used: str | None, waker: str) -> tuple[str, list[str]]:
    """Return a start method for a kernel, and the reason.

    Parameters
    ----------
    wanted
        The option `start_method`.
    used
        The runtime of a device that the kernel has woken, None where there is none.
    waker
        Which line, cell or import woke it; '' where unknown.

    Raises
    ------
    RuntimeError
        ``"fork"`` is wanted where it cannot work.
    """
    if wanted == "fork" and used is not None:
        raise RuntimeError(
            f"start_method='fork': this kernel has already used {used}, which a forked rank cannot "
            f"use; leave start_method out, and ranks start in fresh processes{_woken_by(waker)}"
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
        told = (
            f"{used} is in use in this kernel: the ranks are fresh processes; no restart is needed"
        )
        return "forkserver", [told + _woken_by(waker)]
    return "fork", []


def _woken_by(waker: str) -> str:
    return f" (woken: {waker})" if waker else ""


def _shared_handles(handles: list[str], function: object) -> list[str]:
    if not handles:
        return []
    what = ", ".join(handles[:_NAMED])
    if len(handles) > _NAMED:
        name = getattr(function, "__name__", "function")
        what += f" and {len(handles) - _NAMED} more (nbstate.captured({name}) shows all)"
    return [
        f"{what}: opened in the kernel, and all ranks use the same one; open it in the function"
    ]


def _little_shared_memory() -> list[str]:
    space = memory.shared()
    if space is None or space[1] > _USUAL_IN_DOCKER:
        return []
    free, size = map(memory.in_words, space)
    told = (
        f"/dev/shm has {size}, {free} free: NCCL and DataLoader workers may end in a bus error; "
        "docker run --shm-size=8g gives them room"
    )
    return [told]
