"""nbdistributed's workers, beside ranks that stay; imported inside the kernel that is measured.

It is compared with where somebody has installed it, and is in no extra: the kernel then unpickles
what comes to a port that is open on every interface, and its own `%dist_shutdown` ends every process
of the machine whose command line has words such as "worker.py" in it. Here that is never called.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from IPython import get_ipython

INSTALL = "pip install --no-deps nbdistributed"


def start(workers: int) -> None:
    """Start workers by its magics and return when each of them has run a cell."""
    # A worker is whatever `python` comes first on PATH: the kernel's, in an environment that has
    # been activated; another, which may have no torch, in a kernel that was started by its path.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = get_ipython()
    shell.run_line_magic("load_ext", "nbdistributed")
    with redirect_stdout(io.StringIO()) as said:
        shell.run_line_magic("dist_init", f"-n {workers}")
        shell.run_line_magic("dist_mode", "--disable")  # else it takes every later cell
    if _magics()._comm_manager is None:  # it has only printed why
        raise RuntimeError(said.getvalue())
    _wait_until_connected()
    cell("seen = rank")
    seen = answers("seen")
    if [answer.get("output") for answer in seen] != [str(rank) for rank in range(workers)]:
        raise RuntimeError(f"a cell did not run on {workers} workers of nbdistributed: {seen}")


def _wait_until_connected() -> None:
    """Ask for an answer until all give one: what a worker is sent before it is there is lost."""
    while True:
        try:
            _magics()._comm_manager.send_to_all("get_status", {}, timeout=1)
        except TimeoutError:
            ended = [p for p in _magics()._process_manager.processes if p.poll() is not None]
            if ended:
                raise RuntimeError(ended[0].stderr.read()) from None
        else:
            return


def cell(code: str) -> None:
    """Run a cell on every worker, as `%%distributed` in a notebook does."""
    get_ipython().run_cell_magic("distributed", "", code)


def answers(code: str) -> list[dict[str, Any]]:
    """Return what each worker answers, by rank: its "output", or its "error"."""
    by_rank = _magics()._comm_manager.send_to_all("execute", code, timeout=120)
    return [by_rank[rank] for rank in sorted(by_rank)]


def stop() -> None:
    """End the workers, however far they have come."""
    for process in _magics()._process_manager.processes:
        process.kill()
        process.communicate()
    if _magics()._comm_manager is not None:
        _magics()._comm_manager.shutdown()


def _magics() -> Any:
    return get_ipython().magics_manager.registry["DistributedMagic"]
