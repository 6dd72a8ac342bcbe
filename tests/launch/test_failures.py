"""What a user reads when a rank fails, in a real kernel."""

from __future__ import annotations

import pytest

SETUP = """
import os, signal, sys
import torch.distributed as dist
from nbstate import PartialState, RankError, launch, notebook_launcher
"""


@pytest.fixture
def kernel_with_names(shared_kernel):
    shared_kernel.run(SETUP)
    return shared_kernel


@pytest.mark.parametrize("failing", [0, 1])
def test_the_rank_that_raised_is_named_not_the_one_that_lost_it(kernel_with_names, failing):
    cell = kernel_with_names.run(f"""
        def train():
            state = PartialState()
            dist.barrier()
            if state.process_index == {failing}:
                raise ValueError("boom")
            dist.barrier()
        notebook_launcher(train, num_processes=2)
    """)
    lines = cell.error.traceback.splitlines()
    assert cell.error.ename == "RankError"
    assert lines[0] == f"rank {failing} of 2: ValueError: boom"
    assert 'raise ValueError("boom")' in cell.error.traceback
    assert "Cell In[" in cell.error.traceback
    assert "nbstate" not in cell.error.traceback
    assert lines[-1].startswith(f"rank {1 - failing}: lost its peer in barrier (Cell In[")


def test_a_rank_is_at_the_users_line_wherever_the_library_below_is(kernel_with_names, tmp_path):
    installed = tmp_path / ".local/lib/python3/site-packages"
    installed.mkdir(parents=True)
    (installed / "library.py").write_text("def fail(): raise ValueError('boom')\n")
    kernel_with_names.run(f"sys.path.append({str(installed)!r})\nimport library")
    cell = kernel_with_names.run("""
        def train():
            library.fail()
        try:
            notebook_launcher(train, num_processes=2)
        except RankError as error:
            print(error.failures[error.rank].where)
    """)
    assert "Cell In[" in cell.stdout
    assert "line 2, in train: library.fail()" in cell.stdout


def test_both_failures_are_listed_in_order_of_time(kernel_with_names):
    cell = kernel_with_names.run("""
        def train():
            state = PartialState()
            dist.barrier()
            raise KeyError(f"column {state.process_index}")
        try:
            notebook_launcher(train, num_processes=2)
        except RankError as error:
            times = [failure.when for failure in error.failures.values()]
            print(times == sorted(times), error.rank == next(iter(error.failures)))
            print(type(error.original(KeyError)), error.original(ValueError), type(error.__cause__))
            print(isinstance(error, dist.elastic.multiprocessing.errors.ChildFailedError))
    """)
    assert cell.error is None
    assert "True True" in cell.stdout
    assert "<class 'KeyError'> None <class 'KeyError'>" in cell.stdout


def test_an_exception_travels_whose_init_takes_other_arguments(kernel_with_names):
    cell = kernel_with_names.run("""
        import threading
        class BadColumnError(Exception):
            def __init__(self, table, column):
                super().__init__(f"{table} has no {column}")
                self.table, self.column, self.lock = table, column, threading.Lock()
        def train():
            raise BadColumnError("iris", "weight")
        try:
            notebook_launcher(train, num_processes=2)
        except RankError as error:
            found = error.original(BadColumnError)
            print(found, found.table, found.column, hasattr(found, "lock"), error.__cause__ is found)
    """)
    assert cell.error is None
    assert "iris has no weight iris weight False True" in cell.stdout


def test_a_rank_that_waits_for_one_that_has_returned_is_told(kernel_with_names):
    cell = kernel_with_names.run("""
        import nbstate.state.waiting
        nbstate.state.waiting.FIRST_NOTICE = 0.1
        def train():
            if PartialState().is_main_process:
                PartialState().wait_for_everyone()
        notebook_launcher(train, num_processes=2)
    """)
    lines = cell.error.traceback.splitlines()
    assert lines[0] == (
        "rank 0 of 2: RuntimeError: rank 0 waits for rank 1, whose function has returned: "
        "every rank must come here"
    )
    assert any("PartialState().wait_for_everyone()" in line for line in lines)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os._exit(3)", "rank 1 of 2: exit code 3"),
        ("os._exit(0)", "rank 1 of 2: ended without a result (exit code 0)"),
        ("sys.exit('why')", "rank 1 of 2: SystemExit: why"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 2: killed by SIGKILL; "),
        ("os.kill(os.getpid(), signal.SIGTERM)", "rank 1 of 2: killed by SIGTERM"),
        ("__import__('ctypes').string_at(0)", "rank 1 of 2: killed by SIGSEGV"),
    ],
)
def test_an_end_without_an_exception_is_named(kernel_with_names, end, told):
    cell = kernel_with_names.run(f"""
        def train():
            if PartialState().process_index == 1:
                {end}
            dist.barrier()
        notebook_launcher(train, num_processes=2)
    """)
    assert cell.error.evalue.startswith(told)
    if "SIGSEGV" in told:
        assert "Cell In[" in cell.error.evalue, "the last Python stack is shown"


def test_a_finished_ranks_value_is_kept_and_a_busy_rank_is_stopped(kernel_with_names):
    cell = kernel_with_names.run("""
        def train():
            rank = int(os.environ["RANK"])
            if rank == 0:
                return "early"
            print("up")
            while rank == 2 or not os.path.exists("rank 0 is done"):
                pass
            raise ValueError("boom")
        job = launch(train, num_processes=3)
        while job.ranks[0].state != "done" or "up" not in job.ranks[2].stdout:
            pass
        open("rank 0 is done", "w").close()
        try:
            job.wait()
        except RankError as error:
            print(error.results, list(error.failures))
            print(str(error).splitlines()[-1])
    """)
    assert cell.error is None
    assert "{0: 'early'} [1, 2]" in cell.stdout
    assert "rank 2: stopped because of rank 1 (Cell In[" in cell.stdout


def test_chained_causes_keep_their_own_tracebacks(kernel_with_names):
    cell = kernel_with_names.run("""
        def train():
            try:
                {}["missing"]
            except KeyError as error:
                raise RuntimeError("no column") from error
        notebook_launcher(train, num_processes=2)
    """)
    assert "KeyError: 'missing'" in cell.error.traceback
    assert "direct cause" in cell.error.traceback
    assert "RuntimeError: no column" in cell.error.traceback


def test_the_run_ends_at_its_timeout_and_says_who_was_late(kernel_with_names):
    cell = kernel_with_names.run("""
        import time
        def train():
            if os.environ["RANK"] == "0":
                return 1
            time.sleep(600)
        try:
            notebook_launcher(train, num_processes=2, timeout=1.0)
        except TimeoutError as error:
            print(type(error).__name__, error)
    """)
    assert cell.error is None
    assert "RankTimeoutError train took longer than timeout=1 s; rank 1 not done" in cell.stdout


def test_exceptions_that_are_hard_to_tell_arrive_as_text(kernel_with_names):
    cell = kernel_with_names.run("""
        import threading
        class Locked(Exception):
            def __init__(self, a, b):
                super().__init__("locked")
                self.lock = threading.Lock()
        class Mute(Exception):
            def __str__(self): raise RuntimeError("no text")
        def told(make):
            def train(): raise make()
            try:
                notebook_launcher(train, num_processes=2, view="silent")
            except RankError as error:
                return str(error).splitlines()[0].split(": ", 1)[1], len(str(error)) < 100_000
        def cyclic():
            a, b = ValueError("a"), ValueError("b")
            a.__cause__, b.__cause__ = b, a
            return a
        for make in (lambda: Locked(1, 2), Mute, lambda: ValueError("x" * 5_000_000), cyclic):
            print(*told(make))
    """)
    assert cell.error is None
    lines = cell.stdout.splitlines()
    assert lines[0] == "Locked: locked True"
    assert "Mute" in lines[1]
    assert lines[2].startswith("ValueError: xxx")
    assert lines[2].endswith("True")
    assert lines[3] == "ValueError: a True"
