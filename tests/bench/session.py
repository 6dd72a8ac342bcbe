"""Ranks that stay: the round trip of an empty cell, and fresh ranks in the place of old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.scenarios import bench_kernel, medians, run
from tests.bench.table import ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.table import Row

ROUND_TRIPS = 200

SETUP = """
import ipyparallel, nbstate
session = nbstate.Session(2)
cluster = ipyparallel.Cluster(n=2, log_level=40)
engines = cluster.start_and_connect_sync()[:]
"""


def session(rounds: int) -> Iterator[Row]:
    """Run an empty cell and an empty function on 2 ranks that stay, then replace the ranks."""
    with bench_kernel() as kernel:
        run(kernel, SETUP)
        contenders = {
            "cell": "session.cell('pass', collect=False)",
            "function": "session.run(work.nothing)",
            "ipyparallel": "engines.apply_sync(work.nothing)",
        }
        times = medians(kernel, contenders, ROUND_TRIPS)
        yield ratio("empty cell, 2 ranks that stay", times, "cell", "ipyparallel", 0.5)
        yield ratio("empty function, 2 ranks that stay", times, "function", "ipyparallel", 0.5)
        run(kernel, "cluster.stop_cluster_sync()")
        launches = {"refork": "session.refork()", "floor": "by_hand(work.group_up, 2)"}
        times = medians(kernel, launches, rounds)
        yield ratio("fresh ranks, kernel as it is", times, "refork", "floor", 1.5)
        run(kernel, "session.close()")
