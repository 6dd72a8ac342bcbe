"""Ranks in fresh processes: for a kernel that has used its accelerator, and where nothing forks.

A process that has opened a CUDA context cannot be forked into one that uses CUDA. So the function
and its arguments travel by value to new processes. ``forkserver`` makes them in milliseconds, from
a template process that has imported torch and never touched a device; the template is the standard
library's, is started at the first need and kept. ``spawn`` starts an interpreter for each rank.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from nbstate import memory, travel, values
from nbstate.baggage import parts_of_call
from nbstate.rank import bootstrap
from nbstate.rank.call import Call, Descriptor, Parcel, Surroundings
from nbstate.start import ahead, popen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.process import BaseProcess
    from pickle import PickleBuffer

    from nbstate.rank.bootstrap import Setup

_UNKNOWN = 255  # multiprocessing's exit code of a rank that only its template could tell
_NEXT = "the next launch starts a new one"


class Fresh:
    """Starts ranks by one of multiprocessing's methods that make fresh processes.

    Parameters
    ----------
    method
        ``"forkserver"`` or ``"spawn"``.
    call
        What the ranks will call. It is packed here, before any process exists.
    ranks
        How many ranks there will be.
    on_devices
        What of the call has tensors on a device.

    Raises
    ------
    UnpicklableError
        Something that the function needs cannot travel; the message names it.
    """

    call: Parcel

    def __init__(self, method: str, call: Call, ranks: int, on_devices: Sequence[str]) -> None:
        self._context = multiprocessing.get_context(method)
        self._method = method
        self._payload, self._buffers = _pack(call)
        self.notes = [
            *_moved(on_devices),
            *_too_big(len(self._payload), sum(part.raw().nbytes for part in self._buffers), ranks),
        ]
        self.by_reference: dict[int, str] = {}
        self.surroundings = Surroundings.of_this_process()
        self.classes = travel.classes_here()
        which = "notebook_template" if self.surroundings.notebook else "template"
        self._preloaded = [f"nbstate.start.{which}"]
        if method == "forkserver" and ahead.needs_compiler(call.function):
            self._preloaded.insert(0, ahead.COMPILER)
        # A rank's parent is the template, not the kernel, where there is a template.
        self.kernel_pid = os.getpid() if method == "spawn" else None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Have the template and the shared buffers at hand while ranks are started."""
        self._have_helpers()
        buffers, descriptor, _ = values.share(self._buffers)
        shared = None if descriptor is None else Descriptor(descriptor)
        self.call = Parcel(self._payload, buffers, shared)
        try:
            yield
        finally:
            if shared is not None:
                os.close(shared)  # the ranks hold it now

    def _have_helpers(self) -> None:
        """Start what multiprocessing needs, where it does not run, out of reach of interrupts."""
        resource_tracker.ensure_running()
        # That lets interrupts in again. What is started from here on must not be hit by the
        # kernel's before it knows what to do with them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if self._method == "forkserver":
            if _template_pid() is None:
                self._context.set_forkserver_preload(self._preloaded)
            forkserver.ensure_running()

    def start(self, setup: Setup) -> BaseProcess:
        """Start one rank.

        Raises
        ------
        ConnectionError
            The template is gone.
        """
        kind = popen.FromTemplate if self._method == "forkserver" else popen.Spawned
        process: BaseProcess = kind(
            target=bootstrap.live, args=(setup,), name=f"nbstate-rank-{setup.rank}"
        )
        try:
            process.start()
        except (EOFError, ConnectionError):
            raise ConnectionError(
                "the template process, which ranks are forked from, is gone: somebody killed it, "
                f"or it could start no further process; {_NEXT}"
            ) from None
        return process

    def why_ended(self, exitcode: int | None, *, began: bool) -> str:
        """Return why a rank is gone that left no word, where its start explains it; else ``""``."""
        if exitcode == _UNKNOWN and self._method == "forkserver" and not _template_lives():
            return f"the template process, which it was forked from, was killed; {_NEXT}"
        script = getattr(sys.modules["__main__"], "__file__", None)
        if exitcode == 1 and not began and script is not None:
            return (
                f"exit code 1 while it imported {Path(script).name}, as every fresh process does: "
                'put what is to run once, and so this launch, under if __name__ == "__main__":'
            )
        return ""


def _template_pid() -> int | None:
    template: Any = forkserver._forkserver
    pid: int | None = template._forkserver_pid
    return pid


def _template_lives() -> bool:
    pid = _template_pid()
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _moved(on_devices: Sequence[str]) -> list[str]:
    if not on_devices:
        return []
    names = ", ".join(on_devices)
    return [f"{names}: moved to the CPU on the way to the ranks; move it on from there"]


def _too_big(copied: int, shared: int, ranks: int) -> list[str]:
    needed, free = ranks * copied + shared, memory.free()
    if needed <= free:
        return []
    what = f"{ranks} copies of {memory.in_words(copied)} and {memory.in_words(shared)} shared"
    told = (
        f"the ranks need {memory.in_words(needed)} for what the function drags along ({what}), "
        f"and {memory.in_words(free)} are free: have the function load it, or pass large tensors "
        "and arrays, which are shared; nbstate.captured(function) shows what it is"
    )
    return [told]


def _pack(call: Call) -> tuple[bytes, list[PickleBuffer]]:
    try:
        return values.dump(call, "the call")
    except values.UnpicklableError as error:
        raise values.UnpicklableError(_where(call) or str(error)) from None


def _where(call: Call) -> str | None:
    """Say which argument or variable cannot travel, by the name that the user gave it."""
    for what, part in parts_of_call(call):
        try:
            values.dump(part, what)
        except values.UnpicklableError as error:
            return str(error)
    return None
