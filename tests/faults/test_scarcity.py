"""Little room, few descriptors, few processes: it works all the same, or says what is missing."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from nbstate import cgroups
from tests.faults.conftest import setup
from tests.faults.inside import with_namespaces

BIG = """
def train():
    state = PartialState()
    total = torch.ones(1)
    dist.all_reduce(total)
    return torch.full((32 * 1024 * 1024 // 4,), float(state.process_index)), total.item()
results = notebook_launcher(train, num_processes=2)
[(big.numel(), big[-1].item(), total) for big, total in results]
"""


def test_results_larger_than_dev_shm(start_method):
    small = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    cell = with_namespaces(["--mount"], small, setup(start_method), BIG)
    assert cell.error is None
    assert cell.result == "[(8388608, 0.0, 2.0), (8388608, 1.0, 2.0)]"
    assert cell.left == []


def test_a_full_temporary_disk_loses_the_log_not_the_run(tmp_path):
    cell = with_namespaces(
        ["--mount"],
        f"mount -t tmpfs -o size=1m tmpfs {tmp_path}; export TMPDIR={tmp_path}",
        setup("fork"),  # the log is the kernel's: ranks of either kind write none
        """
        import tempfile
        with open(tempfile.gettempdir() + "/filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                print(error.strerror)
        def train():
            print("a line" * 400_000)  # more than the disk, so more than what others may free of it
            return torch.ones(1 << 20).sum().item()
        job = launch(train, num_processes=2)
        list(job.wait()), "a line" in job.ranks[0].stdout, job.notes
        """,
    )
    assert cell.error is None
    assert "No space left on device" in cell.stdout
    assert cell.result.startswith("([1048576.0, 1048576.0],")
    assert "True" in cell.result
    assert "the log of rank 0 is cut short: No space left on device" in cell.result
    assert cell.left == []


def test_few_descriptors_are_an_error_before_or_during_the_start_and_leave_nothing(notebook):
    cell = notebook.run("""
        import gc, psutil, resource
        def one(): return 1
        list(notebook_launcher(one, num_processes=4, view="silent"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        me = psutil.Process()
        open_now, children, outcomes = me.num_fds(), me.children(), []
        try:
            for room in range(0, 120, 6):
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + room, hard))
                try:
                    outcomes.append(len(notebook_launcher(one, num_processes=4, view="silent")))
                except OSError as error:
                    outcomes.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        said = [text for text in outcomes if isinstance(text, str)]
        print(*(text for text in said if "ulimit -n" not in text), sep="\\n")
        (len(said) > 5, outcomes[-1], gc.collect() and 0, me.num_fds() - open_now, me.children() == children)
    """)
    assert cell.error is None
    assert cell.stdout.strip() == ""
    assert cell.result == "(True, 4, 0, 0, True)"


# The template would go on being root's, who has no such limit.
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may become a user with a limit")
def test_a_process_limit_is_an_error_during_the_start_and_leaves_nothing(kernel):
    kernel.run(setup("fork"))
    kernel.run("list(notebook_launcher(lambda: 1, num_processes=2))")  # all imports done
    cell = kernel.run("""
        import contextlib, psutil, resource, shutil, stat, tempfile
        me = psutil.Process()
        def pipes():
            found = 0
            for number in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):  # closed meanwhile, by another thread
                    found += stat.S_ISFIFO(os.fstat(number).st_mode)
            return found
        children, before = me.children(), pipes()
        os.setresuid(65534, 65534, 65534)       # root has no such limit
        folder = tempfile.mkdtemp(dir="/tmp")
        limit = lambda n: resource.setrlimit(resource.RLIMIT_NPROC, (me.num_threads() + n, 1 << 16))
        for room in (2, 4, 8, 16):
            limit(room)
            try:
                notebook_launcher(time.sleep, (0.3,), 6, view="silent", log_dir=folder)
            except (OSError, RankError, RuntimeError) as error:
                print(f"told: {error}".splitlines()[0])
        shutil.rmtree(folder)
        me.children() == children, pipes() - before
    """)
    assert cell.error is None
    told = [line for line in cell.stdout.splitlines() if line.startswith("told: ")]
    assert told
    assert [
        line for line in told if "ulimit -u" not in line and "start new thread" not in line
    ] == []
    # torch leaves one pipe of its own open where it is the store that gets no thread.
    assert cell.result in ("(True, 0)", "(True, 2)")


@pytest.fixture
def group(kernel):
    """A control group of 600 MiB with the kernel in it."""
    own, *_ = cgroups.groups("memory") or [pathlib.Path("/nowhere")]
    made = own / f"nbstate-{kernel.pid}"
    try:
        made.mkdir()
        limit = made / (
            "memory.max" if (own / "cgroup.controllers").exists() else "memory.limit_in_bytes"
        )
        limit.write_text(str(600 << 20))
        (made / "cgroup.procs").write_text(str(kernel.pid))
    except OSError as error:
        if made.exists():
            made.rmdir()
        pytest.skip(f"no control group with a limit can be made here: {error.strerror}")
    yield made
    kernel.kill()
    while (made / "cgroup.procs").read_text():
        time.sleep(0.01)  # what is being killed is in it until it is gone
    made.rmdir()


def test_the_limit_of_a_batch_job_is_told_of_where_it_ended_a_rank(kernel, group):
    cell = kernel.run("""
        from nbstate import PartialState, notebook_launcher
        def train():
            if PartialState().process_index == 1:
                return len(b"x" * (1 << 30))
            PartialState().wait_for_everyone()
        notebook_launcher(train, num_processes=2)
    """)
    first = cell.error.evalue.splitlines()[0]
    assert first.startswith(
        "rank 1 of 2: killed by SIGKILL; the memory limit was hit, it last used"
    )
    assert first.endswith("the container has 600 MiB")
