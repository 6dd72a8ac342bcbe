"""Several runs at once, ranks that fork, and an interpreter that ends before its ranks."""

from __future__ import annotations

import subprocess
import sys

import psutil


def test_runs_that_start_together_do_not_take_each_others_pipes(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import launch
        def start(n): return launch(lambda: n, num_processes=2, view="silent")
        pairs = [list(job.wait()) for _ in range(8) for job in (start(1), start(2))]
        many = [start(n) for n in range(8)]
        pairs == [[1, 1], [2, 2]] * 8, [list(job.wait()) == [n, n] for n, job in enumerate(many)]
    """)
    assert cell.error is None
    assert cell.result == repr((True, [True] * 8))


def test_a_child_that_comes_back_from_the_function_is_no_rank(shared_kernel):
    cell = shared_kernel.run("""
        import os
        from nbstate import notebook_launcher
        def train(): return "child" if os.fork() == 0 else "rank"
        list(notebook_launcher(train, num_processes=2))
    """)
    assert cell.result == "['rank', 'rank']"


def test_a_script_that_ends_ends_its_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import time, nbstate\n"
        "session = nbstate.Session(2)\n"
        "job = nbstate.launch(time.sleep, 600, num_processes=2)\n"
        "print('ranks', *(rank.pid for rank in job.ranks))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("ranks ")]
    assert [psutil.pid_exists(int(pid)) for pid in told.split()[1:]] == [False, False]
