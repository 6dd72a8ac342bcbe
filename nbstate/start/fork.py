"""Ranks forked from the live kernel: they have every variable it has, and start in milliseconds.

The caller's thread must be a fresh one that lives as long as the ranks:

- OpenMP's threads belong to the thread that first used them. A child forked from the thread that
  ran torch in a cell waits for ever for threads that are not in it; in a child of a thread that
  never ran torch, OpenMP starts anew, with all its threads.
- The signal that ends a rank with its kernel is bound to the forking thread.
"""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from typing import TYPE_CHECKING

from nbstate import travel, values
from nbstate.rank import bootstrap, front
from nbstate.start import ahead, popen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

    from nbstate.rank.bootstrap import Setup
    from nbstate.rank.call import Call


class Fork:
    """Starts ranks by forking this process."""

    surroundings = None

    def __init__(self, call: Call) -> None:
        self.call = call
        self.kernel_pid = os.getpid()
        self.by_reference = values.names_in_main()
        self.classes = travel.classes_here()
        front.prepare()
        ahead.load(call.function)

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Keep the ranks' garbage collectors from touching, and so copying, the objects."""
        if gc.get_freeze_count():  # the user's own freeze: not ours to undo
            yield
            return
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()

    def start(self, setup: Setup) -> BaseProcess:
        """Fork one rank. It leads a process group of its own by the time this returns."""
        process = popen.Forked(
            target=bootstrap.live, args=(setup,), name=f"nbstate-rank-{setup.rank}"
        )
        with _no_fork_warning():
            process.start()
        assert process.pid is not None
        # The rank does so too, whoever is first. Suppressed: it has, or it is already gone.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(process.pid, process.pid)
        return process

    def why_ended(self, exitcode: int | None, *, began: bool) -> str:
        """Return ``""``: a forked rank needs nothing but the kernel."""
        return ""


@contextlib.contextmanager
def _no_fork_warning() -> Iterator[None]:
    """Python 3.12 warns of forks with threads; these are made so that the threads do not matter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        yield
