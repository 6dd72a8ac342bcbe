"""Ranks that stay: an empty cell, fresh ranks in the place of old ones, and being looked at."""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING

from tests.bench.nbdistributed import INSTALL
from tests.bench.scenarios import bench_kernel, medians, run
from tests.bench.table import Row, absent, quantity, ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUND_TRIPS = 200

SETUP = """
import ipyparallel, nbstate, torch
from tests.bench import nbdistributed
ballast = torch.ones(50_000_000)
session = nbstate.Session(2)
cluster = ipyparallel.Cluster(n=2, log_level=40)
engines = cluster.start_and_connect_sync()[:]
"""

LOOKED_AT = """
import nbstate, os, psutil, time, torch

def steps():
    state = nbstate.PartialState()
    step = 0
    while not os.path.exists("go"):
        step += 1
        nbstate.log(loss=1 / step)
        torch.distributed.barrier()
        time.sleep(0.01)

def used():
    \"\"\"Return the CPU seconds of each job's ranks so far.\"\"\"
    times = [[psutil.Process(rank.pid).cpu_times() for rank in job.ranks] for job in jobs]
    return [sum(time.user + time.system for time in ranks) for ranks in times]

jobs = [nbstate.launch(steps, num_processes=2, view="silent") for _ in range(2)]
while not all(job.metrics.steps for job in jobs):
    time.sleep(0.01)
"""


def session(rounds: int) -> Iterator[Row]:
    """Run an empty cell and an empty function on 2 ranks that stay, then replace the ranks."""
    beside = importlib.util.find_spec("nbdistributed") is not None
    with bench_kernel() as kernel:
        run(kernel, SETUP)
        try:  # others' processes outlive a kernel that fails
            contenders = {
                "cell": "session.cell('pass', collect=False)",
                "function": "session.run(work.nothing)",
                "ipyparallel": "engines.apply_sync(work.nothing)",
            }
            if beside:
                run(kernel, "nbdistributed.start(2)")
                contenders["nbdistributed"] = "nbdistributed.cell('pass')"
            times = medians(kernel, contenders, ROUND_TRIPS)
        finally:
            run(kernel, "cluster.stop_cluster_sync()" + "\nnbdistributed.stop()" * beside)
        yield ratio("empty cell, 2 ranks that stay", times, "cell", "ipyparallel", 0.5)
        if beside:
            yield ratio("empty cell, 2 ranks that stay", times, "cell", "nbdistributed", 0.5)
        else:
            yield absent("empty cell, 2 ranks that stay", "nbdistributed", INSTALL)
        yield ratio("empty function, 2 ranks that stay", times, "function", "ipyparallel", 0.5)
        launches = {"refork": "session.refork()", "floor": "by_hand(work.group_up, 2)"}
        times = medians(kernel, launches, rounds)
        yield ratio("fresh ranks, kernel as it is", times, "refork", "floor", 1.5)
        run(kernel, "session.close()")


def inspector(rounds: int, seconds: float = 5) -> Iterator[Row]:
    """Look at one of two equal jobs, whose ranks log a hundred numbers a second."""
    with bench_kernel() as kernel:
        run(kernel, LOOKED_AT)
        cell = kernel.run("nbstate.inspect(jobs[0])")
        before = kernel.eval("used()")
        first = len(cell.contents("update_display_data"))
        began = time.monotonic()
        kernel.read_until(lambda: time.monotonic() - began >= rounds * seconds, timeout=1800)
        took = time.monotonic() - began
        updates = len(cell.contents("update_display_data")) - first
        looked_at, left_alone = (
            100 * (now - then) / took / 2
            for now, then in zip(kernel.eval("used()"), before, strict=True)
        )
        measured = f"{looked_at:.2f} % : {left_alone:.2f} % left alone"
        yield Row("CPU of a rank that is inspected", measured, looked_at - left_alone, 1, "%")
        yield quantity("updates of an inspector", updates / took, 4, "/s")
        run(kernel, "open('go', 'w').close()\nfor job in jobs: job.wait()")
