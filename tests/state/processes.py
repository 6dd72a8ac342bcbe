"""Real ranks: scripts under torchrun, under MPI's variables, and alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parents[2]

# What a script is given besides its own lines: `report(value)` hands a value to the test.
_BEGINNING = """
import json, os, sys
from pathlib import Path
def report(value, rank=None):
    rank = os.environ.get("RANK", "0") if rank is None else rank
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(value))
"""


def script(folder: Path, lines: str) -> Path:
    """Write a script whose lines may call `report(value)`."""
    path = folder / "script.py"
    path.write_text(_BEGINNING + lines)
    return path


def reports(folder: Path, world_size: int) -> list[Any]:
    """What each rank reported, in the order of ranks."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


def torchrun(folder: Path, lines: str, world_size: int) -> list[Any]:
    """Run the lines under the real torchrun, and return what each rank reported."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    done = python([*command, str(script(folder, lines)), str(folder)])
    assert done.returncode == 0, done.stderr
    return reports(folder, world_size)


def side_by_side(folder: Path, lines: str, environments: Sequence[Mapping[str, str]]) -> list[Any]:
    """Run the lines once in each environment at the same time, as MPI's launchers do."""
    path = script(folder, lines)
    running = [
        subprocess.Popen(
            [sys.executable, str(path), str(folder)],
            env=environment(variables),
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in environments
    ]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), errors
    return reports(folder, len(environments))


def python(
    arguments: Sequence[str], variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and further environment variables."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(variables or {}),
        capture_output=True,
        text=True,
        check=False,
    )


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, where nbstate can be imported, with further variables."""
    return {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", **variables}


def free_port() -> str:
    """A port that nobody listens on at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
