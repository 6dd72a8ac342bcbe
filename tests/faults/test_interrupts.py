"""Interrupts at any moment end the run plainly: KeyboardInterrupt, nobody left, ready for more."""

from __future__ import annotations

import signal
import time
from itertools import product

import psutil
import pytest

from tests.faults.conftest import setup, shared_memory

AGAIN = (
    "list(notebook_launcher(lambda: PartialState().num_processes, num_processes=2, view='silent'))"
)


def up(kernel, cell, ranks=2):
    kernel.read_until(lambda: cell.stdout.count("up") >= 1 and "[0-1] up" in cell.stdout)


def ended_plainly(kernel, cell):
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    assert "nbstate/" not in cell.error.traceback  # but the cell's own line
    assert kernel.left_running() == []
    assert kernel.run(AGAIN).result == "[2, 2]"


WORK = {
    "asleep": "print('up'); time.sleep(600)",
    "waiting": "print('up'); PartialState() if os.environ['RANK'] == '0' else time.sleep(600)",
    "busy": "print('up')\n            while True: pass",
}


@pytest.mark.parametrize(
    ("body", "group"), [("asleep", False), ("asleep", True), ("waiting", False), ("busy", True)]
)
def test_during_work(notebook, group, body):
    cell = notebook.start(f"""
        def train():
            {WORK[body]}
        notebook_launcher(train, num_processes=2, grace=1)
    """)
    up(notebook, cell)
    notebook.signal(signal.SIGINT, group=group)
    ended_plainly(notebook, cell)


def test_twice_quickly_ends_even_stubborn_ranks_at_once(notebook):
    cell = notebook.start("""
        def train():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("up")
            while True:
                try:
                    time.sleep(600)
                except KeyboardInterrupt:
                    print("no")
        notebook_launcher(train, num_processes=2, grace=300)
    """)
    up(notebook, cell)
    notebook.signal(signal.SIGINT)
    notebook.read_until(lambda: "no" in cell.stdout)
    notebook.signal(signal.SIGINT)
    ended_plainly(notebook, cell)


def test_swallowed_interrupts_end_within_the_grace_time(notebook):
    cell = notebook.run("""
        def train():
            while True:
                try:
                    print("up")
                    time.sleep(600)
                except BaseException:
                    pass
        job = launch(train, num_processes=2, grace=0.5, view="silent")
        while any("up" not in rank.stdout for rank in job.ranks):
            time.sleep(0.01)
        began = time.monotonic()
        job.stop()
        while not job.done:
            time.sleep(0.01)
        time.monotonic() - began < 0.5 + 2, [rank.exitcode for rank in job.ranks]
    """)
    assert cell.result == "(True, [-15, -15])"


def test_during_the_start(notebook):
    """Interrupted at ever later moments: while nothing, some or all of the ranks exist."""
    for moment in range(12):
        cell = notebook.start(f"""
            began = time.monotonic()
            threading.Timer({moment} * 0.012, os.kill, (os.getpid(), signal.SIGINT)).start()
            notebook_launcher(lambda: time.sleep(600), num_processes=4, view="silent")
        """)
        notebook.wait(cell)
        assert cell.error.ename == "KeyboardInterrupt"
        assert notebook.left_running() == []
    assert notebook.run(AGAIN).result == "[2, 2]"


def test_a_storm_from_the_first_rank_to_the_last(notebook):
    """Interrupts keep coming, while ranks are still being started and while they are ended."""
    for _ in range(5):
        cell = notebook.start("""
            def press():
                while True:
                    try:
                        os.kill(kernel, signal.SIGINT)
                        time.sleep(0.001)
                    except KeyboardInterrupt:
                        pass
            kernel = os.getpid()
            notebook_launcher(press, num_processes=4, view="silent", grace=300)
        """)
        notebook.wait(cell)
        assert cell.error.ename == "KeyboardInterrupt"
        assert notebook.left_running() == []
    assert notebook.run(AGAIN).result == "[2, 2]"


def test_during_the_teardown(notebook):
    cell = notebook.start("""
        import atexit
        def train():
            PartialState()
            atexit.register(time.sleep, 600)
            atexit.register(print, "up")
            return 1
        notebook_launcher(train, num_processes=2, grace=300)
    """)
    up(notebook, cell)
    notebook.signal(signal.SIGINT)
    ended_plainly(notebook, cell)


def test_a_job_survives_interrupts_of_other_cells(notebook):
    notebook.run("""
        def train():
            while not os.path.exists("go on"):
                time.sleep(0.01)
            return 7
        job = launch(train, num_processes=2, view="silent")
    """)
    # Not one long sleep: Python misses a signal that comes just before it asks the system to sleep.
    cell = notebook.start("print('asleep', flush=True)\nwhile True: time.sleep(0.01)")
    notebook.read_until(lambda: "asleep" in cell.stdout)
    notebook.signal(signal.SIGINT, group=True)
    notebook.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    assert notebook.run("open('go on', 'w').close(); list(job.wait())").result == "[7, 7]"


def test_ranks_that_have_not_begun_survive_an_interrupt_of_the_kernels_group(notebook):
    cell = notebook.run("""
        def train():
            return 7
        results = []
        for _ in range(10):
            try:
                job = launch(train, num_processes=2, view="silent")
                os.killpg(os.getpgrp(), signal.SIGINT)
                time.sleep(600)
            except KeyboardInterrupt:
                results += job.wait()
        set(results)
    """)
    assert cell.error is None
    assert cell.result == "{7}"


FAMILY = """
from torch.utils.data import DataLoader, Dataset
import multiprocessing, subprocess
class Slow(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep(0.01)
        return torch.zeros(1000)
def train():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    pool = multiprocessing.Pool(1)
    loader = iter(DataLoader(Slow(), num_workers=2))
    next(loader)
    PartialState().wait_for_everyone()
    print("up")
    time.sleep(600)
"""


def test_a_killed_rank_takes_its_workers_along(notebook):
    notebook.run(FAMILY)
    cell = notebook.run("""
        import psutil
        def lives(process):     # a zombie is dead: whoever it was handed to has yet to look
            with process.oneshot():
                return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        job = launch(train, num_processes=2, view="silent")
        while "up" not in job.ranks[0].stdout:
            time.sleep(0.01)
        family = psutil.Process(job.ranks[0].pid).children(recursive=True)
        os.kill(job.ranks[0].pid, signal.SIGKILL)
        while not job.done:
            time.sleep(0.01)
        len(family), [p for p in family if lives(p)], str(job.error).splitlines()[0][:35]
    """)
    assert cell.error is None
    assert cell.result == "(4, [], 'rank 0 of 2: killed by SIGKILL; it ')"


@pytest.mark.parametrize(
    ("start_method", "end"),
    [*product(["fork"], ["kill", "restart", "shutdown"]), ("forkserver", "kill")],
)
def test_a_kernels_end_takes_everything_along(kernel, start_method, end):
    kernel.run(setup(start_method))
    kernel.run(FAMILY)
    before = shared_memory()
    cell = kernel.start("job = notebook_launcher(train, num_processes=2)")
    up(kernel, cell)
    family = kernel.children()
    assert len(family) >= 10
    listening = {
        connection.laddr.port
        for connection in psutil.net_connections()
        if connection.status == "LISTEN" and connection.pid == kernel.pid
    }
    if end == "kill":
        kernel.kill()
    elif end == "restart":
        kernel.restart()
    else:
        kernel._manager.shutdown_kernel()
    _, alive = psutil.wait_procs(family, timeout=3)
    assert alive == []
    assert shared_memory() <= before
    if end == "kill":
        still = {c.laddr.port for c in psutil.net_connections() if c.status == "LISTEN"}
        assert not (listening & still)


def test_a_kernel_that_dies_among_its_forks_takes_forked_workers_along(kernel, tmp_path):
    told = tmp_path / "workers"
    kernel.run(setup("fork"))
    kernel.start(f"""
        ballast = bytearray(os.urandom(1 << 20)) * 500  # a fork takes its time
        def train():
            if os.fork() == 0:
                with open({str(told)!r}, "a") as file:
                    file.write(f"{{os.getpid()}}\\n")
                time.sleep(600)
            time.sleep(600)
        notebook_launcher(train, num_processes=8)
    """)
    while not told.exists() or told.read_text().count("\n") < 2:
        time.sleep(0.001)
    kernel.kill()
    workers = [
        psutil.Process(int(pid)) for pid in told.read_text().split() if psutil.pid_exists(int(pid))
    ]
    _, alive = psutil.wait_procs(workers, timeout=3)
    assert alive == []


def test_one_that_comes_once_the_function_is_over_takes_nothing_of_how_it_ended(notebook):
    cell = notebook.run("""
        class Told(Exception):
            def __str__(self):
                os.kill(os.getpid(), signal.SIGINT)
                return "told all the same"
        class Value:
            def __reduce__(self):
                os.kill(os.getpid(), signal.SIGINT)
                return str, ("returned all the same",)
        def fail():
            raise Told
        print(list(notebook_launcher(Value, num_processes=2, view="silent")))
        notebook_launcher(fail, num_processes=2, view="silent")
    """)
    assert cell.stdout == "['returned all the same', 'returned all the same']\n"
    assert cell.error.traceback.splitlines()[0].endswith("of 2: Told: told all the same")
