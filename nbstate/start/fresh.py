"""Ranks in fresh processes: for a kernel that has used its accelerator, and where nothing forks.

A process that has opened a CUDA context cannot be forked into one that uses CUDA. So the function
and its arguments travel by value to new processes. ``forkserver`` makes them in milliseconds, from
a template process that has imported torch and never touched a device; the template is the standard
library's, is started at the first need and kept. ``spawn`` starts an interpreter for each rank.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any

from nbstate import values
from nbstate.rank import bootstrap
from nbstate.rank.call import Call, Descriptor, Parcel, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

    from nbstate.rank.bootstrap import Setup

_PRELOADED = ["nbstate.start.template"]


class Fresh:
    """Starts ranks by one of multiprocessing's methods that make fresh processes.

    Parameters
    ----------
    method
        ``"forkserver"`` or ``"spawn"``.
    call
        What the ranks will call. It is packed here, before any process exists.

    Raises
    ------
    UnpicklableError
        Something that the function needs cannot travel; the message names it.
    """

    def __init__(self, method: str, call: Call) -> None:
        self._context = multiprocessing.get_context(method)
        self._method = method
        self.call = _pack(call)
        self.notes = _notes(call)
        self.surroundings = Surroundings.of_this_process()
        # A rank's parent is the template, not the kernel, where there is a template.
        self.kernel_pid = os.getpid() if method == "spawn" else None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Have the template at hand while ranks are started."""
        template: Any = forkserver._forkserver
        if self._method == "forkserver" and template._forkserver_pid is None:
            self._context.set_forkserver_preload(_PRELOADED)
        try:
            yield
        finally:
            if self.call.shared is not None:
                os.close(self.call.shared)  # the ranks hold it now

    def start(self, setup: Setup) -> BaseProcess:
        """Start one rank."""
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined] # base context
            target=bootstrap.live, args=(setup,), name=f"nbstate-rank-{setup.rank}"
        )
        process.start()
        return process


def _notes(call: Call) -> list[str]:
    moved = [what for what, part in _named_parts(call) if getattr(part, "is_cuda", False)]
    if not moved:
        return []
    return [f"{', '.join(moved)}: moved to the CPU on the way to the ranks; move it on from there"]


def _pack(call: Call) -> Parcel:
    try:
        payload, raw = values.dump(call, "the call")
    except values.UnpicklableError as error:
        raise values.UnpicklableError(_where(call) or str(error)) from error.__cause__
    buffers, descriptor, _ = values.share(raw)
    return Parcel(payload, buffers, None if descriptor is None else Descriptor(descriptor))


def _where(call: Call) -> str | None:
    """Say which argument or variable cannot travel, by the name that the user gave it."""
    for what, part in _named_parts(call):
        try:
            values.dump(part, what)
        except values.UnpicklableError as error:
            return str(error)
    return None


def _named_parts(call: Call) -> Iterator[tuple[str, Any]]:
    for index, value in enumerate(call.args):
        yield f"args[{index}]", value
    for name, value in call.kwargs.items():
        yield f"kwargs[{name!r}]", value
    try:
        used = inspect.getclosurevars(call.function)
    except TypeError:  # not a plain function
        return
    for name, value in used.nonlocals.items():
        yield f"closure variable {name!r}", value
    for name, value in used.globals.items():
        yield f"global variable {name!r}", value
