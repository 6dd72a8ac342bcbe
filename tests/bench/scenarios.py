"""What is measured. Each scenario runs in a fresh kernel and yields rows of the table."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.table import Row, quantity, ratio
from tests.kernels import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MB = 1e6
PRELUDE = "from tests.bench import floor, work\nfrom tests.bench.contenders import *\n"
BIG_HEAP = "import torch\nballast = torch.ones(2 << 28), [object() for _ in range(5_000_000)]\n"


@contextmanager
def bench_kernel() -> Iterator[Kernel]:
    """Give a kernel, a live front end's, that can import the bench."""
    with Kernel(env={"PYTHONPATH": str(ROOT)}, allow_stdin=True) as kernel:
        run(kernel, PRELUDE)
        yield kernel


def run(kernel: Kernel, code: str) -> None:
    """Run a cell that may take long and must not fail."""
    cell = kernel.run(code, timeout=1800)
    if cell.error is not None:
        raise RuntimeError(cell.error.traceback)


def medians(kernel: Kernel, contenders: dict[str, str], rounds: int) -> dict[str, float]:
    """Time expressions side by side inside the kernel."""
    lambdas = ", ".join(f"{name!r}: lambda: {code}" for name, code in contenders.items())
    run(kernel, f"times = interleave({{{lambdas}}}, {rounds})")
    return kernel.eval("times")


def launches(work: str, n: int, *names: str) -> dict[str, str]:
    """Write the launch of one function by each of the named contenders."""
    how = {"nbstate": "by_nbstate", "floor": "by_hand", "accelerate": "by_accelerate"}
    return {name: f"{how[name]}(work.{work}, {n})" for name in names}


def launch(rounds: int) -> Iterator[Row]:
    """Launch a no-op, results back."""
    with bench_kernel() as kernel:
        times = medians(kernel, launches("group_up", 2, "nbstate", "floor", "accelerate"), rounds)
        yield ratio("no-op, 2 ranks, gloo group", times, "nbstate", "floor", 1.25)
        yield ratio("no-op, 2 ranks, gloo group", times, "nbstate", "accelerate", 0.9)
        times = medians(kernel, launches("nothing", 2, "nbstate", "floor"), rounds)
        yield ratio("no-op, 2 ranks, no group", times, "nbstate", "floor", 1.25)
        for n, bar in ((4, 1.25), (8, 1.25), (64, 1.3)):
            times = medians(kernel, launches("group_up", n, "nbstate", "floor"), rounds)
            yield ratio(f"no-op, {n} ranks, gloo group", times, "nbstate", "floor", bar)


def heap(rounds: int) -> Iterator[Row]:
    """Launch a no-op from a kernel that holds much."""
    with bench_kernel() as kernel:
        run(kernel, BIG_HEAP)
        times = medians(kernel, launches("group_up", 2, "nbstate", "floor"), rounds)
        yield ratio("no-op, kernel with 2 GiB, 5M objects", times, "nbstate", "floor", 1.25)


def first(rounds: int) -> Iterator[Row]:
    """Launch for the first time in a fresh kernel, imports included."""
    times: dict[str, list[float]] = {"nbstate": [], "accelerate": []}
    for _ in range(rounds):
        for name, samples in times.items():
            with bench_kernel() as kernel:
                start = time.perf_counter()
                run(kernel, launches("group_up", 2, name)[name])
                samples.append(time.perf_counter() - start)
    middle = {name: statistics.median(samples) for name, samples in times.items()}
    yield ratio("first launch of a fresh kernel", middle, "nbstate", "accelerate", 1.0)


def output(rounds: int, lines: int = 200_000) -> Iterator[Row]:
    """Print 200,000 lines on each of 2 ranks."""
    with bench_kernel() as kernel:
        run(kernel, "import nbstate\nby_nbstate(work.nothing, 2)")
        cell = kernel.run(
            "with PeakMemory() as memory:\n"
            f"    job = nbstate.launch(work.print_lines, {lines}, num_processes=2)\n"
            "    job.wait()",
            timeout=1800,
        )
        checks = kernel.eval(f"[check_log(str(r.log), {lines}) for r in job.ranks]")
        for fault in ("lost", "broken"):
            yield quantity(f"lines {fault}", sum(check[fault] for check in checks), 0, "lines")
        yield quantity("kernel memory above before", kernel.eval("memory.grown") / MB, 100, "MB")
        contenders = {
            "nbstate": f"by_nbstate(work.print_lines, 2, {lines})",
            "floor": f"floor.count_lines(work.print_lines, 2, {lines})",
            "blocks": f"floor.count_lines(work.print_lines, 2, {lines}, by_line=False)",
        }
        times = medians(kernel, contenders, rounds)
        yield ratio(f"2 x {lines:,} lines", times, "nbstate", "floor", 2.0, unit="s")
        yield ratio(f"2 x {lines:,} lines", times, "nbstate", "blocks", 2.0, unit="s")
        sent = sum(len(json.dumps(message["content"])) for message in cell.messages)
        yield quantity("bytes on iopub", sent / MB, 5, "MB")


def tensors(rounds: int) -> Iterator[Row]:
    """Bring a tensor of 256 MiB back from each of 2 ranks."""
    with bench_kernel() as kernel:
        contenders = {
            "nbstate": "by_nbstate(work.big_tensor, 2)",
            "floor": "floor.tensors(work.big_tensor, 2, work.TENSOR_VALUES)",
        }
        times = medians(kernel, contenders, rounds)
        yield ratio("256 MiB tensor per rank, 2 ranks", times, "nbstate", "floor", 1.3)


def error(rounds: int) -> Iterator[Row]:
    """Raise on rank 1 while rank 0 is in a barrier."""
    delays = []
    with bench_kernel() as kernel:
        for _ in range(rounds):
            cell = kernel.run("by_nbstate(work.fail_on_rank_1, 2)")
            shown = time.monotonic()  # the same clock in every process of the machine
            raised = re.search(r"raised at ([0-9.]+)", cell.error.traceback)
            delays.append(shown - float(raised[1]))
    yield quantity("from an exception to the error in the cell", statistics.median(delays), 1, "s")


def ddp(rounds: int) -> Iterator[Row]:
    """Train 200 steps with DistributedDataParallel and a print each; only the loop counts."""
    times: dict[str, list[float]] = {"nbstate": [], "floor": [], "torchrun": []}
    with bench_kernel() as kernel:
        for _ in range(rounds):
            for name in ("nbstate", "floor"):
                run(kernel, f"seconds = max({launches('ddp_loop', 2, name)[name]})")
                times[name].append(kernel.eval("seconds"))
            times["torchrun"].append(torchrun())
    middle = {name: statistics.median(samples) for name, samples in times.items()}
    yield ratio("200 DDP steps, a print each", middle, "nbstate", "floor", 1.03)
    yield ratio("200 DDP steps, a print each", middle, "nbstate", "torchrun", 1.0)


def torchrun() -> float:
    """Return the seconds of the DDP loop under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*command, "-m", "tests.bench.work"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return max(float(seconds) for seconds in re.findall(r"loop ([0-9.]+) s", ended.stdout))


def idle(rounds: int, seconds: float = 5) -> Iterator[Row]:
    """Watch the kernel while 8 ranks are silent."""
    with bench_kernel() as kernel:
        run(
            kernel,
            "import os, nbstate, psutil\n"
            "os.mkfifo('go')\n"
            "job = nbstate.launch(work.wait_for, 'go', num_processes=8)",
        )
        before = kernel.eval("sum(psutil.Process().cpu_times()[:2])")
        time.sleep(seconds)
        used = kernel.eval("sum(psutil.Process().cpu_times()[:2])") - before
        run(kernel, "open('go', 'w').close()\njob.wait()")
    yield quantity("kernel CPU while 8 ranks are silent", 100 * used / seconds, 1, "%")


def imports(rounds: int) -> Iterator[Row]:
    """Import in a fresh process."""
    programs = {
        "nothing": "pass",
        "nbstate": "import nbstate",
        "launcher": "import torch, nbstate; nbstate.notebook_launcher",
        "torch": "import torch",
    }
    caching = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):
        for name, code in programs.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=caching)
            samples[name].append(time.perf_counter() - start)
    times = {name: statistics.median(values[1:]) for name, values in samples.items()}
    yield quantity("import nbstate", 1000 * (times["nbstate"] - times["nothing"]), 50, "ms")
    yield ratio("nbstate's launcher", times, "launcher", "torch", 1.02, unit="s")


def shared(rounds: int) -> Iterator[Row]:
    """Read an array of 1 GB of the kernel on 8 ranks."""
    with bench_kernel() as kernel:
        run(kernel, "import numpy\narray = numpy.ones(10**9 // 8)")
        run(kernel, "private = max(by_nbstate(lambda: work.private_growth(array.sum), 8))")
        extra = 100 * kernel.eval("private") / 1e9
    yield quantity("memory of a rank that reads 1 GB of the kernel", extra, 5, "%")


def fresh(rounds: int) -> Iterator[Row]:
    """Launch on fresh processes instead of forks, a second time."""
    with bench_kernel() as kernel:
        contenders = {
            "nbstate": "by_nbstate(work.group_up, 2, start_method='forkserver')",
            "fork": "by_nbstate(work.group_up, 2)",
        }
        times = medians(kernel, contenders, rounds)
        yield ratio("no-op, 2 fresh ranks", times, "nbstate", "fork", 2.0)


SCENARIOS = {
    f.__name__: f
    for f in (
        launch,
        heap,
        first,
        fresh,
        output,
        tensors,
        shared,
        error,
        ddp,
        idle,
        imports,
    )
}
