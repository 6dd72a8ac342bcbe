"""Ranks that no longer get on are told of, with the collective and the line of each."""

from __future__ import annotations

import time

import pytest

from tests.faults.conftest import forked, setup
from tests.kernels import Kernel

# A stalled run is ended as soon as it has been told of: no test waits for a time to pass.
STALLED = """
def stalled(train, n=2, **options):
    job = launch(train, num_processes=n, stall_after=0.5, grace=0.5, view="silent", **options)
    while not job.notes and not job.done:
        time.sleep(0.01)
    report, stacks = "\\n".join(job.notes), job.stacks()
    job.stop()
    while not job.done:
        time.sleep(0.01)
    print(report)
    return report, stacks
"""


@pytest.fixture
def kernel_with_stalls(notebook):
    notebook.run(STALLED)
    return notebook


def test_different_collectives_are_told_of_with_the_odd_one_out_first(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        def train():
            rank = PartialState().process_index
            dist.all_reduce(torch.ones(3))
            if rank == 1:
                dist.broadcast(torch.ones(2, 3), src=0)
            else:
                dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX)
        report, stacks = stalled(train, 3)
        first, second = (report.index(name) for name in ("rank 1: in broadcast", "ranks 0, 2: in"))
        first < second, stacks in report
    """)
    assert cell.result == "(True, True)"
    assert "no sign of life from any rank for 0.5 s" in cell.stdout
    assert "in broadcast of float32[2, 3] from rank 0, call 2 of the default group" in cell.stdout
    assert "in all_reduce MAX of float32[3], call 2 of the default group" in cell.stdout
    assert "in train: dist.broadcast(torch.ones(2, 3), src=0)" in cell.stdout
    assert "do not match" in cell.stdout


@forked("the watch is the kernel's")
def test_different_shapes_are_told_of(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        def train():
            rank = PartialState().process_index
            if rank == 2:
                time.sleep(600)
            dist.broadcast(torch.ones(3 + rank), src=2)
        _ = stalled(train, 3)
    """)
    for rank, length in ((0, 3), (1, 4)):
        called = f"in broadcast of float32[{length}] from rank 2, call 1 of the default group"
        assert f"rank {rank}: {called}" in cell.stdout
    assert "do not match" in cell.stdout


@forked("the watch is the kernel's")
def test_a_collective_that_one_rank_calls_names_who_is_missing(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        def train():
            if PartialState().is_main_process:
                dist.all_gather_object([None, None], "text")
            time.sleep(600)
        _ = stalled(train)
    """)
    assert "rank 1: in no collective, 0 begun so far:" in cell.stdout
    assert "in train: time.sleep(600)" in cell.stdout
    assert "rank 0: in all_gather_object, call 1 of the default group:" in cell.stdout
    assert "rank 0 will wait until rank 1 calls it too" in cell.stdout


@forked("the watch is the kernel's")
def test_groups_and_waits_are_named(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        def train():
            rank = PartialState().process_index
            group = dist.new_group([0, 2])
            if rank == 0:
                dist.barrier(group)
            elif rank == 1:
                PartialState().wait_for_everyone()
            time.sleep(600)
        _ = stalled(train, 3)
    """)
    assert "rank 0: in barrier, call 1 of the group of ranks 0, 2" in cell.stdout
    assert "rank 1: in wait_for_everyone" in cell.stdout
    assert "rank 0 will wait until rank 2 calls it too" in cell.stdout
    assert "rank 1 will wait until ranks 0, 2 call it too" in cell.stdout


@forked("the watch is the kernel's")
def test_groups_are_not_compared_with_each_other(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        def train():
            rank = PartialState().process_index
            groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            dist.barrier(groups[rank % 2])
            if rank < 2:
                dist.all_reduce(torch.ones(2 + rank), group=groups[rank])
            time.sleep(600)
        _ = stalled(train, 4)
    """)
    assert "rank 0 will wait until rank 2 calls it too" in cell.stdout
    assert "rank 1 will wait until rank 3 calls it too" in cell.stdout
    assert "do not match" not in cell.stdout


@forked("the watch is the kernel's")
def test_a_rank_that_never_returns_is_told_of_even_if_it_is_busy(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        def train():
            if os.environ["RANK"] == "1":
                while True:
                    pass
        _ = stalled(train)
    """)
    assert "rank 1 still at work, 0.5 s after rank 0 returned" in cell.stdout
    assert "in train: pass" in cell.stdout or "in train: while True" in cell.stdout


def test_ranks_whose_c_code_holds_the_lock_are_told_of(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        import ctypes
        def train():
            lock = ctypes.PyDLL(None).pthread_mutex_lock    # keeps the interpreter's lock meanwhile
            mutex = ctypes.create_string_buffer(64)
            lock(mutex), lock(mutex)
        _ = stalled(train)
    """)
    assert "ranks 0, 1:" in cell.stdout
    assert "in train: lock(mutex), lock(mutex)" in cell.stdout


@forked("the watch is the kernel's")
def test_work_of_any_kind_is_no_stall(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        import subprocess
        def busy(seconds=1.5):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
        def computes():
            PartialState()
            if os.environ["RANK"] == "0":
                busy()
            dist.barrier()
        def has_a_worker():
            code = "import time; end = time.time() + 1.5\\nwhile time.time() < end: pass"
            subprocess.run([sys.executable, "-c", code])
        def speaks():
            for i in range(15):
                time.sleep(0.1)
                print(i)
        def run(train):
            job = launch(train, num_processes=2, stall_after=0.5, view="silent")
            job.wait()
            return job.notes
        run(computes), run(has_a_worker), run(speaks)
    """)
    assert cell.result == "([], [], [])"


@forked("the watch is the kernel's")
def test_nothing_is_told_without_a_limit_and_a_report_comes_once_per_stall(kernel_with_stalls):
    cell = kernel_with_stalls.run("""
        def train():
            for turn in ("first", "second"):
                print(turn)
                open(turn).close()      # waits until somebody opens its other end
        os.mkfifo("first"), os.mkfifo("second")
        job = launch(train, num_processes=2, stall_after=0.5, view="silent")
        quiet = launch(time.sleep, 1, num_processes=2, stall_after=None, view="silent")
        once = []
        for turn in ("first", "second"):
            before = len(job.notes)
            while any(turn not in rank.stdout for rank in job.ranks) or len(job.notes) == before:
                time.sleep(0.01)
            told = len(job.notes)
            time.sleep(1.5)     # a stall goes on: nothing more is said of it
            once.append(len(job.notes) == told)
            open(turn, "w").close()
        job.wait(), quiet.wait()
        once, quiet.notes
    """)
    assert cell.result == "([True, True], [])"


def test_stacks_can_be_asked_for_at_any_time(notebook):
    cell = notebook.run("""
        def train():
            PartialState()
            dist.all_reduce(torch.ones(3))
            print("up")
            time.sleep(600)
        job = launch(train, num_processes=4, view="silent")
        while any(rank.stdout != "up\\n" for rank in job.ranks):
            time.sleep(0.01)
        print(job.stacks())
        job.kill()
        while not job.done:
            time.sleep(0.01)
        print(job.stacks())
    """)
    assert "ranks 0, 1, 2, 3:\n" in cell.stdout
    assert "in train: time.sleep(600)" in cell.stdout
    assert "no rank of train is at work" in cell.stdout


def test_ranks_that_have_not_begun_are_told_of_too(kernel, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    )
    cell = kernel.run(f"""
        import os
        from nbstate import launch
        path = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = {str(tmp_path)!r} + os.pathsep + path
        job = launch(abs, -1, num_processes=2, start_method="spawn", view="silent")
        told = job.stacks()
        open("go", "w").close()
        told, list(job.wait())
    """)
    assert cell.error is None
    assert cell.result == "('ranks 0, 1: on the way to the function', [1, 1])"


def test_a_question_that_nobody_has_answered_yet_is_no_stall(tmp_path):
    with Kernel(tmp_path, allow_stdin=True) as kernel:
        kernel.run(setup("fork"))
        cell = kernel.start("""
            def train():
                if PartialState().is_main_process:
                    input("name? ")
                PartialState().wait_for_everyone()
            notebook_launcher(train, num_processes=2, stall_after=0.3, view="plain")
        """)
        kernel.read_until(lambda: bool(cell.prompts))
        time.sleep(2)  # nothing is to be said meanwhile
        kernel.interrupt()
        kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    assert "no sign of life" not in cell.stdout
