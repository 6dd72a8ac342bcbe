"""multiprocessing's ways to start a process, without their first step.

That one flushes the kernel's streams, which has been done. From a new thread, such as that of a
job, ipykernel would open a socket for it, and keep it for a while.
"""

from __future__ import annotations

import os
from multiprocessing import context, popen_fork, popen_forkserver, popen_spawn_posix, util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


class _Fork(popen_fork.Popen):
    """A fork that leaves no pipe open where it fails."""

    def _launch(self, process_obj: BaseProcess) -> None:
        # Each end is at its end once the other process is gone.
        child, to_parent = os.pipe()
        parent, to_child = os.pipe()
        try:
            self.pid = os.fork()
        except BaseException:
            for end in (child, to_parent, parent, to_child):
                os.close(end)
            raise
        if self.pid == 0:
            code = 1
            try:
                os.close(child)
                os.close(to_child)
                code = process_obj._bootstrap(parent_sentinel=parent)  # type: ignore[attr-defined]
            finally:
                os._exit(code)
        os.close(to_parent)
        os.close(parent)
        self.sentinel = child
        self.finalizer = util.Finalize(self, util.close_fds, (child, to_child))  # type: ignore[attr-defined]


class Forked(context.ForkProcess):
    """A process forked from this one."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> popen_fork.Popen:  # noqa: N802 - its name there
        return _started(_Fork, process_obj)


class FromTemplate(context.ForkServerProcess):
    """A process forked from the template."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802
        return _started(popen_forkserver.Popen, process_obj)


class Spawned(context.SpawnProcess):
    """A process with an interpreter started for it."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802
        return _started(popen_spawn_posix.Popen, process_obj)


def _started(kind: type[popen_fork.Popen], process: BaseProcess) -> popen_fork.Popen:
    popen: Any = kind.__new__(kind)
    popen._fds, popen.returncode, popen.finalizer = [], None, None  # as `__init__` has them
    popen._launch(process)
    return popen  # type: ignore[no-any-return]
