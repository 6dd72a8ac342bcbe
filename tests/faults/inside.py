"""Run cells in a real kernel inside namespaces of their own: no network, little shared memory.

    with_namespaces("--net", "ip link set lo up", cells) -> the last cell, as `tests.kernels` has it

Needs the right to make namespaces, as root has it in most containers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def with_namespaces(kinds: list[str], prepare: str, *cells: str) -> Any:
    """Run `cells` in a kernel in new namespaces; `prepare` is run in them first, by the shell."""
    probe = ["unshare", *kinds, "sh", "-c", prepare]
    try:
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot do this here: {' '.join(probe)}: {error}")
    command = ["unshare", *kinds, "sh", "-ec", f'{prepare}; exec "$0" -m tests.faults.inside']
    done = subprocess.run(
        [*command, sys.executable],
        check=False,
        input=json.dumps(cells),
        text=True,
        capture_output=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(**json.loads(done.stdout))


def main() -> None:
    from tests.kernels import Kernel

    with Kernel() as kernel:
        for code in json.load(sys.stdin):
            cell = kernel.run(code)
        left = [process.name() for process in kernel.left_running()]
        error = None if cell.error is None else cell.error.evalue
        told = {"stdout": cell.stdout, "stderr": cell.stderr, "result": cell.result}
        print(json.dumps({**told, "error": error, "left": left}))


if __name__ == "__main__":
    main()
