"""What the kernel did before the fork does not hurt the ranks, or is told of."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from tests.faults.conftest import forked, shared_memory

INHERITED = forked("fresh ranks inherit nothing")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_torch_compile_in_the_kernel_and_then_in_ranks(kernel):
    cell = kernel.run(
        """
        import torch
        from nbstate import notebook_launcher
        f = torch.compile(lambda x: x.sin() + x.cos())
        first = f(torch.ones(8)).sum().item()
        def train():
            g = torch.compile(lambda x: (x * 2).exp() - 1)
            same, other = f(torch.ones(8)), f(torch.ones(16))
            return same.sum().item(), other.shape, g(torch.zeros(5)).sum().item()
        results = notebook_launcher(train, num_processes=2, timeout=150)
        all(result == (first, torch.Size([16]), 0.0) for result in results)
        """,
        timeout=170,
    )
    assert cell.error is None
    assert cell.result == "True"
    assert "left running" not in cell.stdout


@INHERITED
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_another_start_method_in_the_kernel(notebook, method):
    cell = notebook.run(f"""
        import multiprocessing
        multiprocessing.set_start_method({method!r}, force=True)
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return i
        def train():
            loader = torch.utils.data.DataLoader(Numbers(), num_workers=1)
            return sum(int(batch.sum()) for batch in loader)
        found = list(notebook_launcher(train, num_processes=2))
        method = multiprocessing.get_start_method()
        multiprocessing.set_start_method(None, force=True)
        found, method
    """)
    assert cell.result == f"([6, 6], '{method}')"


HANDLES = {
    "handle": "open('data.txt', 'w+')",
    "database": "__import__('sqlite3').connect('data.db')",
    "images": "__import__('h5py').File('data.h5', 'w')",
}


@INHERITED
@pytest.mark.parametrize("name", HANDLES)
def test_an_open_handle_is_told_of_once_by_its_name(notebook, name):
    if name == "images" and importlib.util.find_spec("h5py") is None:
        pytest.skip("h5py is not installed")
    cell = notebook.run(f"""
        {name} = {HANDLES[name]}
        def helper(): return {name}
        def train(): return helper() is not None
        found = list(notebook_launcher(train, num_processes=2))
        {name}.close()
        found
    """)
    assert cell.result == "[True, True]"
    assert len([line for line in cell.stdout.splitlines() if f"'{name}'" in line]) == 1


@INHERITED
def test_work_with_threads_before_the_fork(notebook):
    cell = notebook.run("""
        big = torch.randn(1500, 1500, requires_grad=True)
        (big @ big).sum().backward()
        def train():
            return torch.equal((big @ big), (big @ big))
        list(notebook_launcher(train, num_processes=2, timeout=60))
    """)
    assert cell.result == "[True, True]"


@INHERITED
def test_an_executor_of_the_kernel_and_one_of_a_rank_do_not_hold_a_rank_up(notebook):
    cell = notebook.run("""
        from concurrent.futures import ThreadPoolExecutor
        kernels = ThreadPoolExecutor(2)
        kernels.submit(print, "in the kernel").result()
        def train():
            own = ThreadPoolExecutor(2)
            return own.submit(lambda: 5).result()
        list(notebook_launcher(train, num_processes=2)), kernels.submit(lambda: 6).result()
    """)
    assert cell.result == "([5, 5], 6)"
    assert "left running" not in cell.stdout


def test_pools_of_joblib_that_the_kernel_has_made(kernel):
    before = shared_memory()
    cell = kernel.run("""
        from joblib import Parallel, delayed
        from nbstate import notebook_launcher
        def work(): return Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(4))
        work()
        list(notebook_launcher(work, num_processes=2, timeout=100)), work()
    """)
    assert cell.error is None
    assert cell.result == "([[0, 1, 2, 3], [0, 1, 2, 3]], [0, 1, 2, 3])"
    kernel._manager.shutdown_kernel()  # not killed, so that joblib removes what the kernel's has
    assert shared_memory() <= before


@INHERITED
def test_states_of_accelerate_that_the_kernel_has_made(notebook):
    cell = notebook.run("""
        from accelerate import Accelerator
        here = Accelerator(cpu=True)
        def train():
            accelerator = Accelerator(cpu=True)
            return accelerator.process_index, accelerator.num_processes
        list(notebook_launcher(train, num_processes=2)), here.num_processes
    """)
    assert cell.error is None
    assert cell.result == "([(0, 2), (1, 2)], 1)"
