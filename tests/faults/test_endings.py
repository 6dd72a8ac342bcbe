"""However a rank fails, the cell names it first, says how it ended, and ends soon."""

from __future__ import annotations

import pytest

from tests.faults.conftest import setup


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_raises_comes_first_and_one_that_waits_for_it_has_lost_its_peer(
    notebook, start_method, failing
):
    turns = 25 if start_method == "fork" else 10
    cell = notebook.run(
        f"""
        def train(peer_waits):
            if PartialState().process_index == {failing}:
                while not os.path.exists(peer_waits):
                    time.sleep(0.001)
                raise KeyError("col")
            dist.barrier()
        slowest = 0
        for turn in range({turns}):
            job = launch(train, f"{failing} {{turn}}", num_processes=2, view="silent")
            while "rank {1 - failing}: in barrier" not in job.stacks() and not job.done:
                time.sleep(0.001)
            open(f"{failing} {{turn}}", "w").close()
            began = time.monotonic()
            try:
                job.wait()
            except RankError as error:
                first, *_, last = str(error).splitlines()
                if first != "rank {failing} of 2: KeyError: 'col'" or not last.startswith(
                    "rank {1 - failing}: lost its peer in barrier (Cell In["
                ):
                    print(error)
            slowest = max(slowest, time.monotonic() - began)
            os.remove(f"{failing} {{turn}}")
        slowest < 2
        """,
        timeout=120,
    )
    assert cell.error is None
    assert cell.stdout == ""
    assert cell.result == "True"


COMES = {
    "a collective": ("dist.all_reduce(torch.ones(1))", "all_reduce"),
    "a barrier of the store": ("PartialState().wait_for_everyone()", "wait_for_everyone"),
}


@pytest.mark.parametrize("name", COMES)
def test_a_rank_that_comes_to_wait_for_a_failed_one_has_lost_its_peer_too(notebook, name):
    call, told = COMES[name]
    cell = notebook.run(f"""
        def train():
            if PartialState().process_index == 1:
                while not os.path.exists("rank 0 has its group"):
                    time.sleep(0.001)
                raise ValueError("boom")
            open("rank 0 has its group", "w").close()
            {call}
        notebook_launcher(train, num_processes=2)
    """)
    first, *_, last = cell.error.evalue.splitlines()
    assert first == "rank 1 of 2: ValueError: boom"
    assert last.startswith(f"rank 0: lost its peer in {told} (Cell In[")


ENDS = {
    "exit code": ("os._exit(3)", "exit code 3"),
    "no result": ("os._exit(0)", "ended without a result (exit code 0)"),
    "sys.exit": ("sys.exit('why')", "SystemExit: why"),
    "sys.exit code": ("sys.exit(4)", "SystemExit: 4"),
    "BaseException": ("raise Own('rare')", "Own: rare"),
    "recursion": ("deeper()", "RecursionError: maximum recursion depth exceeded"),
    "memory": ("bytearray(1 << 60)", "MemoryError"),
    "memory of torch": ("torch.empty(1 << 56)", "RuntimeError: "),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL; it last used"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", "killed by SIGTERM"),
    "SIGSEGV": ("__import__('ctypes').string_at(0)", "killed by SIGSEGV"),
    "SIGBUS": ("os.kill(os.getpid(), signal.SIGBUS)", "killed by SIGBUS; /dev/shm has"),
    "abort": ("os.abort()", "killed by SIGABRT"),
    "C++": ("__import__('ctypes').CDLL(None).abort()", "killed by SIGABRT"),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_is_named_as_what_it_was(notebook, name):
    end, told = ENDS[name]
    cell = notebook.run(f"""
        class Own(BaseException): ...
        def deeper(): deeper()
        def train():
            if PartialState().process_index == 1:
                {end}
            dist.barrier()
        notebook_launcher(train, num_processes=2)
    """)
    assert cell.error.evalue.startswith(f"rank 1 of 2: {told}")
    if name in ("SIGSEGV", "SIGBUS", "abort", "C++"):
        assert "Last Python stack, innermost line first:\n" in cell.error.evalue
        assert ", in train: " in cell.error.evalue
    if name == "SIGKILL":
        assert "MiB, the " in cell.error.evalue.splitlines()[0]
        assert " has " in cell.error.evalue.splitlines()[0]


def test_an_exit_without_error_is_a_return_of_none(notebook):
    cell = notebook.run("""
        def train():
            raise SystemExit(0) if os.environ["RANK"] == "1" else SystemExit
        list(notebook_launcher(train, num_processes=2))
    """)
    assert cell.result == "[None, None]"


def test_failures_at_the_same_time_are_in_order_of_time(notebook):
    cell = notebook.run("""
        def train():
            rank = PartialState().process_index
            dist.barrier()
            raise ValueError(f"from {rank}")
        try:
            notebook_launcher(train, num_processes=3)
        except RankError as error:
            times = [failure.when for failure in error.failures.values() if not failure.secondary]
            print(times == sorted(times), len(error.failures))
    """)
    assert "True 3" in cell.stdout


HARD = {
    "unpicklable": ("Locked()", "Locked: locked"),
    "no text": ("Mute()", "Mute"),
    "a type no rank can rebuild": ("TwoArguments(1, 2)", "TwoArguments: two"),
    "a huge message": ("ValueError('x' * 5_000_000)", "ValueError: xxx"),
    "cyclic causes": ("cyclic()", "ValueError: a"),
    "a local class": ("local()", "local.<locals>.Local: here"),
    "not UTF-8": ("ValueError('\\udcff')", "ValueError: "),
}


@pytest.mark.parametrize("name", HARD)
def test_an_exception_that_is_hard_to_tell_arrives_as_text(notebook, name):
    make, told = HARD[name]
    cell = notebook.run(f"""
        class Locked(Exception):
            def __init__(self):
                super().__init__("locked")
                self.lock = threading.Lock()
        class Mute(Exception):
            def __str__(self): raise RuntimeError("no text")
        class TwoArguments(Exception):
            def __init__(self, a, b): super().__init__("two")
        def cyclic():
            a, b = ValueError("a"), ValueError("b")
            a.__cause__, b.__cause__ = b, a
            return a
        def local():
            class Local(Exception): ...
            return Local("here")
        def train():
            if os.environ["RANK"] == "1":
                raise {make}
            time.sleep(600)
        notebook_launcher(train, num_processes=2)
    """)
    assert cell.error.ename == "RankError"
    assert cell.error.evalue.startswith(f"rank 1 of 2: {told}")
    assert "in train\n    raise " in cell.error.traceback
    assert len(cell.error.traceback) < 100_000


@pytest.mark.skipif("sys.version_info < (3, 11)", reason="notes and groups came with Python 3.11")
def test_notes_and_groups_are_told(notebook):
    cell = notebook.run("""
        def train():
            error = ExceptionGroup("several", [ValueError("one"), KeyError("two")])
            error.add_note("seen at step 5")
            raise error
        try:
            notebook_launcher(train, num_processes=2)
        except RankError as error:
            print(error)
            print(type(error.__cause__).__name__, len(error.original(ExceptionGroup).exceptions))
    """)
    for words in (
        "ExceptionGroup: several",
        "ValueError: one",
        "KeyError: 'two'",
        "seen at step 5",
    ):
        assert words in cell.stdout
    assert "ExceptionGroup 2" in cell.stdout


def test_the_original_exception_can_be_asked_for(notebook):
    cell = notebook.run("""
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        def train():
            {}["missing"]
        try:
            notebook_launcher(train, num_processes=2)
        except ChildFailedError as error:
            found = error.original(KeyError)
            print(type(found).__name__, found.args, error.original(OSError))
            print(error.__cause__ is not None)
    """)
    assert "KeyError ('missing',) None\nTrue" in cell.stdout


def test_an_error_keeps_nothing_of_the_rank_alive(notebook):
    cell = notebook.run("""
        def train():
            big = torch.ones(1 << 24)
            raise ValueError(big.sum().item())
        try:
            notebook_launcher(train, num_processes=2)
        except RankError as error:
            kept = error
        trace = kept.__cause__.__traceback__
        trace is None, kept.failures[0].exception.__traceback__ is None
    """)
    assert cell.result == "(True, True)"


WAITS = {
    "for its peer to join": ("pass", "PartialState()", "init_process_group"),
    "for a group": ("PartialState()", "PartialState(); dist.new_group([0, 1])", "new_group"),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_rank_that_hears_no_interrupt_is_not_waited_for(notebook, name):
    joined, wait, told = WAITS[name]
    cell = notebook.run(f"""
        def train():
            if os.environ["RANK"] == "1":
                {joined}
                while not os.path.exists("{told}"):
                    time.sleep(0.001)
                raise ValueError("boom")
            {wait}
        job = launch(train, num_processes=2, grace=600)
        while "rank 0: in {told}" not in job.stacks() and not job.done:
            time.sleep(0.001)
        open("{told}", "w").close()
        try:
            job.wait()
        finally:
            os.remove("{told}")
    """)
    first, *_, last = cell.error.evalue.splitlines()
    assert first == "rank 1 of 2: ValueError: boom"
    assert last.startswith(f"rank 0: lost its peer in {told} (Cell In[")


def test_ranks_that_wait_for_each_other_in_vain_are_not_waited_for(notebook):
    cell = notebook.run("""
        def train():
            rank = PartialState().process_index
            dist.broadcast(torch.ones(1), 1) if rank == 0 else dist.broadcast(torch.ones(1), 0)
            dist.all_reduce(torch.ones(1)) if rank == 0 else dist.barrier()
        notebook_launcher(train, num_processes=2, grace=600, timeout=2)
    """)
    assert cell.error.ename == "RankTimeoutError"
    assert "rank 0: ended while it waited" in cell.error.evalue
    assert "in train: dist.broadcast(" in cell.error.evalue


def test_what_a_forked_rank_leaves_in_shared_memory_is_removed(kernel):
    """As at any process's end. Fresh ranks have the kernel's tracker, which waits for its end."""
    kernel.run(setup("fork"))
    cell = kernel.run("""
        import multiprocessing
        from multiprocessing.shared_memory import SharedMemory
        def train(end):
            memory = SharedMemory(create=True, size=1000)
            lock = multiprocessing.get_context("spawn").Lock()
            open(f"{end} {os.environ['RANK']}", "w").write(f"{memory.name} {lock._semlock.name}")
            if end == "raises": raise ValueError("boom")
            if end == "is killed": os.kill(os.getpid(), signal.SIGKILL)
        def left(end, rank):
            memory, lock = open(f"{end} {rank}").read().split()
            return [n for n in (memory, "sem." + lock[1:]) if os.path.exists("/dev/shm/" + n)]
        for end in ("returns", "raises", "is killed"):
            try:
                notebook_launcher(train, (end,), num_processes=1, isolate=True)
            except RankError:
                pass
            while left(end, 0):         # in a moment: whoever removes it has to see its end first
                time.sleep(0.01)
    """)
    assert cell.error is None
