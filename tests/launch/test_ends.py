"""However a run ends, its ranks and what they started are gone."""

from __future__ import annotations

import signal

import psutil
import pytest

SETUP = """
import os, subprocess, time
from nbstate import PartialState, launch, notebook_launcher
def here(): open(f"rank {os.environ['RANK']}", "w").close()
def all_here(n): return all(os.path.exists(f"rank {r}") for r in range(n))
"""


def family_of(kernel) -> list[psutil.Process]:
    return kernel.children()


def test_a_killed_kernel_takes_ranks_and_their_children_along(kernel):
    kernel.run(SETUP)
    kernel.start("""
        def train():
            subprocess.Popen(["sleep", "600"])
            if os.fork() == 0:
                time.sleep(600)
            here()
            PartialState().wait_for_everyone()
            print("all here")
            time.sleep(600)
        job = notebook_launcher(train, num_processes=2)
    """)
    kernel.read_until(lambda: any("all here" in cell.stdout for cell in kernel.cells.values()))
    family = family_of(kernel)
    assert len([p for p in family if p.name() == "sleep"]) == 2
    kernel.kill()
    _, alive = psutil.wait_procs(family, timeout=3)
    assert alive == []


def test_a_restarted_kernel_launches_again(kernel):
    kernel.run(SETUP)
    kernel.start("notebook_launcher(lambda: (print('up'), time.sleep(600)), num_processes=2)")
    kernel.read_until(lambda: any("up" in cell.stdout for cell in kernel.cells.values()))
    family = family_of(kernel)
    kernel.restart()
    _, alive = psutil.wait_procs(family, timeout=3)
    assert alive == []
    kernel.run(SETUP)
    cell = kernel.run(
        "list(notebook_launcher(lambda: PartialState().num_processes, num_processes=2))"
    )
    assert cell.result == "[2, 2]"


@pytest.mark.parametrize("group", [False, True], ids=["kernel alone", "its whole group"])
def test_an_interrupt_ends_the_run_plainly(kernel, group):
    kernel.run(SETUP)
    cell = kernel.start("""
        def train():
            print("up")
            time.sleep(600)
        notebook_launcher(train, num_processes=2)
    """)
    kernel.read_until(lambda: "[0-1] up" in cell.stdout or cell.stdout.count("up") == 2)
    kernel.signal(signal.SIGINT, group=group)
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    assert family_of(kernel) == []
    after = kernel.run(
        "list(notebook_launcher(lambda: PartialState().num_processes, num_processes=2))"
    )
    assert after.result == "[2, 2]"


def test_a_rank_that_swallows_interrupts_is_ended_after_the_grace_time(kernel):
    kernel.run(SETUP)
    cell = kernel.start("""
        import signal
        def train():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("up")
            while True:
                try:
                    time.sleep(600)
                except KeyboardInterrupt:
                    print("no")
        notebook_launcher(train, num_processes=2, grace=0.5)
    """)
    kernel.read_until(lambda: "[0-1] up" in cell.stdout or cell.stdout.count("up") == 2)
    kernel.interrupt()
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    assert "no" in cell.stdout
    assert family_of(kernel) == []


def test_children_of_a_killed_rank_go_too(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        import signal
        def train():
            if os.environ["RANK"] == "0":
                subprocess.Popen(["sleep", "600"])
                os.fork() or time.sleep(600)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        notebook_launcher(train, num_processes=2)
    """)
    assert cell.error.evalue.startswith("rank 0 of 2: killed by SIGKILL")
    assert family_of(kernel) == []


def test_what_a_function_leaves_running_does_not_keep_the_cell(kernel):
    cell = kernel.run("""
        import atexit, multiprocessing, threading, time
        from nbstate import notebook_launcher
        def train():
            multiprocessing.Process(target=time.sleep, args=(999,), name="saver").start()
            threading.Thread(target=time.sleep, args=(999,), name="logger").start()
            atexit.register(time.sleep, 999)
            return 1
        list(notebook_launcher(train, num_processes=2, grace=0.5))
    """)
    assert cell.result == "[1, 1]"
    assert "rank 0: left running after it returned: thread 'logger', process 'saver'" in cell.stdout
    assert family_of(kernel) == []


def test_a_process_that_a_function_has_started_may_finish(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        import multiprocessing
        def save(path):
            total = sum(range(5_000_000))     # longer than a rank takes to leave
            open(path, "w").write(str(total))
        def train():
            multiprocessing.Process(target=save, args=(f"saved by {os.environ['RANK']}",)).start()
            multiprocessing.Process(target=time.sleep, args=(600,), daemon=True).start()
        notebook_launcher(train, num_processes=2, grace=60)
        [open(f"saved by {rank}").read() for rank in range(2)]
    """)
    assert cell.result == "['12499997500000', '12499997500000']"
    assert "left running" not in cell.stdout
    assert family_of(kernel) == []


def test_a_ranks_own_exit_handlers_run_and_the_kernels_do_not(kernel):
    cell = kernel.run("""
        import atexit, os
        from nbstate import notebook_launcher
        atexit.register(lambda: open("of the kernel", "a").write("x"))
        def train():
            atexit.register(lambda: print("goodbye"))
        notebook_launcher(train, num_processes=2)
        os.path.exists("of the kernel")
    """)
    assert cell.result == "False"
    assert "] goodbye" in cell.stdout


def test_a_job_leaves_the_kernel_free_and_can_be_stopped(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        def train():
            print("up")
            time.sleep(600)
        job = launch(train, num_processes=2)
        other = 1 + 1
        while job.ranks[1].stdout != "up\\n":
            pass
        try:
            job.wait(timeout=0.01)
        except TimeoutError as error:
            print(error)
        stacks = job.stacks()
        job.stop()
        try:
            job.wait()
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
        other, job.state, "time.sleep(600)" in stacks, job.logs(0)
    """)
    assert cell.error is None
    assert cell.result == "(2, 'stopped', True, 'up\\n')"
    assert "train is still running after 0.01 s of waiting; it goes on" in cell.stdout
    assert "JobStoppedError train was stopped before its ranks were done" in cell.stdout
    assert family_of(kernel) == []


def test_a_job_that_is_killed_tells_of_no_grace(shared_kernel):
    cell = shared_kernel.run("""
        import time
        from nbstate import launch
        def train():
            print("up", flush=True)
            time.sleep(600)
        job = launch(train, num_processes=2)
        while not all(rank.stdout for rank in job.ranks):
            pass
        job.kill()
        job.wait()
    """)
    assert cell.error.ename == "JobStoppedError"
    assert "rank 0: ended at once; killed by SIGKILL" in cell.error.evalue
    assert "grace" not in cell.error.evalue


def test_waiting_can_be_interrupted_without_ending_the_job(kernel):
    kernel.run(SETUP)
    kernel.run("""
        def train():
            while not os.path.exists("go"):
                time.sleep(0.01)
            return 5
        job = launch(train, num_processes=2)
    """)
    cell = kernel.start("print('waiting'); job.wait()")
    kernel.read_until(lambda: "waiting" in cell.stdout)
    kernel.interrupt()
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    assert "it goes on" in cell.stdout
    after = kernel.run("open('go', 'w').close(); list(await job), job.done, job.state")
    assert after.result == "([5, 5], True, 'done')"
