"""The three ways to launch that are compared; imported inside the kernel that is measured."""

from __future__ import annotations

import gc
import socket
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.bench import floor

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self


def by_hand(function: Callable[..., Any], n: int, *args: Any) -> Any:
    """Launch with the floor."""
    return floor.run(function, n, *args)


def by_nbstate(function: Callable[..., Any], n: int, *args: Any, **options: Any) -> Any:
    """Launch with nbstate, output, errors and view included."""
    from nbstate import notebook_launcher

    return list(notebook_launcher(function, args, num_processes=n, **options))


def by_accelerate(function: Callable[..., Any], n: int, *args: Any) -> Any:
    """Launch with Accelerate, on a free port."""
    from accelerate import notebook_launcher

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return notebook_launcher(function, args, num_processes=n, use_port=str(port))


def interleave(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Run every contender once unmeasured, then in turn; return each one's median, in seconds."""
    for contender in contenders.values():
        contender()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            gc.collect()
            start = time.perf_counter()
            contender()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


class PeakMemory:
    """How far this process's memory rises in a `with` block: `grown`, in bytes.

    It is read from the high-water mark that Linux keeps and lets a process reset.
    """

    def __enter__(self) -> Self:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = psutil.Process().memory_info().rss
        return self

    def __exit__(self, *exc: object) -> None:
        status = Path("/proc/self/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        self.grown = int(peak.split()[1]) * 1024 - self._before


def check_log(path: str, expected: int) -> dict[str, int]:
    """Count in one rank's log the lines of `work.print_lines` that are missing or not whole."""
    seen, broken = set(), 0
    with Path(path).open() as log:
        for line in log:
            number, _, rest = line.rstrip("\n").partition(" ")
            if number.isdigit() and rest == "x" * 69:
                seen.add(int(number))
            else:
                broken += 1
    return {"lost": expected - len(seen & set(range(expected))), "broken": broken}
