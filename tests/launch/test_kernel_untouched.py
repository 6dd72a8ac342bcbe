"""A launch leaves the kernel as it was, and is not disturbed by what the kernel was."""

from __future__ import annotations

SNAPSHOT = """
import gc, multiprocessing, os, pathlib, random, signal, tempfile, threading
import numpy as np, psutil, torch
from nbstate import notebook_launcher

def snapshot():
    gc.collect()
    me = psutil.Process()
    return {
        "threads": me.num_threads(),
        "python threads": sorted(t.name for t in threading.enumerate()),
        "descriptors": me.num_fds(),
        "children": [p.status() for p in me.children(recursive=True)],
        "shared memory": sorted(os.listdir("/dev/shm")),
        "environment": dict(os.environ),
        "signals": [str(signal.getsignal(n)) for n in signal.valid_signals()],
        "wakeup": signal.set_wakeup_fd(signal.set_wakeup_fd(-1)),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "torch threads": torch.get_num_threads(),
        "random": [random.getstate()[1][:9], np.random.get_state()[1][:9].tolist(),
                   torch.get_rng_state()[:99].tolist()],
        "frozen": gc.get_freeze_count(),
        "temporary": len(list(pathlib.Path(tempfile.gettempdir()).glob("nbstate-*"))),
    }
"""


def test_a_hundred_launches_leave_nothing(kernel):
    kernel.run(SNAPSHOT)
    cell = kernel.run(
        """
        def train():
            from nbstate import PartialState
            PartialState().wait_for_everyone()
            torch.distributed.all_reduce(torch.ones(1))
            np.random.rand(), torch.rand(1), random.random()
            return torch.ones(100_000)
        for _ in range(12):
            notebook_launcher(train, num_processes=2, view="silent")
        before = snapshot()
        for _ in range(100):
            results = notebook_launcher(train, num_processes=2, view="silent")
            assert len(results) == 2
        del results
        after = snapshot()
        for name in before:
            if before[name] != after[name]:
                print(name, before[name], after[name])
        """,
        timeout=240,
    )
    assert cell.error is None
    assert cell.stdout == ""


def test_ranks_have_torchruns_variables_and_leftovers_do_not_reach_them(shared_kernel):
    cell = shared_kernel.run("""
        import os
        from nbstate import notebook_launcher
        leftover = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "7", "MASTER_ADDR": "10.9.9.9",
                    "MASTER_PORT": "1", "GROUP_RANK": "3"}
        os.environ.update(leftover)
        names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                 "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR",
                 "FORK_LAUNCHED", "ACCELERATE_MIXED_PRECISION", "TOKENIZERS_PARALLELISM",
                 "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"]
        def train():
            import torch
            from nbstate import PartialState
            assert os.environ["TORCHELASTIC_RUN_ID"] and int(os.environ["MASTER_PORT"]) > 1
            assert torch.distributed.is_torchelastic_launched()
            assert PartialState().num_processes == 2
            return " ".join(os.environ[name] for name in names)
        found = notebook_launcher(train, num_processes=2, mixed_precision="bf16")[1]
        kept = {name: os.environ.pop(name) for name in leftover} == leftover
        kept, found
    """)
    assert cell.result == ("(True, '1 1 2 2 0 1 1 2 default 127.0.0.1 1 bf16 false 0 0')")


def test_threads_are_the_cores_divided_by_the_ranks_unless_the_user_said_otherwise(shared_kernel):
    cell = shared_kernel.run("""
        import os, torch
        from nbstate import notebook_launcher
        def threads(): return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
        def ask(**options):
            return notebook_launcher(threads, num_processes=2, view="silent", **options)[0]
        share = max(1, len(os.sched_getaffinity(0)) // 2)
        first = ask() == (share, str(share)), ask(threads_per_rank=3)
        os.environ["OMP_NUM_THREADS"] = "7"
        kept = ask()[1]
        del os.environ["OMP_NUM_THREADS"]
        first, kept, os.environ.get("OMP_NUM_THREADS")
    """)
    assert cell.result == "((True, (3, '3')), '7', None)"


def test_a_given_environment_reaches_the_ranks_only(shared_kernel):
    cell = shared_kernel.run("""
        import os
        from nbstate import notebook_launcher
        def read(): return os.environ["MINE"]
        list(notebook_launcher(read, num_processes=2, env={"MINE": "yes"})), "MINE" in os.environ
    """)
    assert cell.result == "(['yes', 'yes'], False)"


def test_random_state_is_the_kernels_unless_a_seed_is_given(shared_kernel):
    cell = shared_kernel.run("""
        import random, numpy as np, torch
        from nbstate import notebook_launcher
        def draw(): return np.random.rand(), torch.rand(1).item(), random.random()
        def ask(**options):
            return list(notebook_launcher(draw, num_processes=2, view="silent", **options))
        np.random.seed(0); torch.manual_seed(0)
        plain = ask()
        here = np.random.rand(), torch.rand(1).item()
        equal, apart = ask(seed=5), ask(seed=("per_rank", 0))
        (plain[0][:2] == plain[1][:2] == here, equal[0] == equal[1] == ask(seed=5)[0],
         all(a != b for a, b in zip(*apart)), apart == ask(seed=("per_rank", 0)))
    """)
    assert cell.result == "(True, True, True, True)"


def test_a_seed_is_not_the_kernels_where_one_process_runs_in_it(shared_kernel):
    cell = shared_kernel.run("""
        import random, numpy as np, torch
        from nbstate import notebook_launcher
        def draw(): return np.random.rand(), torch.rand(1).item(), random.random()
        def kernel_seeds(): np.random.seed(0); torch.manual_seed(0); random.seed(0)
        kernel_seeds()
        wanted = draw()
        kernel_seeds()
        first = notebook_launcher(draw, num_processes=1, seed=5)[0]
        draw() == wanted, first == notebook_launcher(draw, num_processes=1, seed=5)[0] != wanted
    """)
    assert cell.result == "(True, True)"


def test_a_state_of_the_kernel_is_its_own_before_and_after(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import PartialState, notebook_launcher
        mine = PartialState()
        def train(): return PartialState().num_processes
        found = [list(notebook_launcher(train, num_processes=n)) for n in (2, 1)]
        found, mine.num_processes, PartialState().num_processes
    """)
    assert cell.result == "([[2, 2], [1]], 1, 1)"
