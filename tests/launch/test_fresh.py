"""Ranks in fresh processes: the same call works after the kernel has used its accelerator."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

METHODS = ["forkserver", "spawn"]

SETUP = """
import dataclasses, functools, os, threading
import numpy as np, torch
import nbstate
from nbstate import PartialState, RankError, notebook_launcher

@dataclasses.dataclass
class Config:
    lr: float = 0.1

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(300, 300)
    def forward(self, x): return self.layer(x)

factor = 3
def helper(x): return x * factor
"""


@pytest.fixture(scope="module")
def cells(shared_kernel):
    shared_kernel.run(SETUP)
    return shared_kernel


@pytest.mark.parametrize("method", METHODS)
def test_notebook_code_travels_by_value(cells, method):
    cell = cells.run(f"""
        def decorate(f):
            @functools.wraps(f)
            def wrapped(*args): return f(*args) + 1
            return wrapped
        @decorate
        def train(net, config):
            state = PartialState()
            state.wait_for_everyone()
            numbers = list(i for i in range(state.num_processes))
            assert type(net) is Net and isinstance(config, Config)
            return helper(config.lr) + sum(numbers) + (lambda: 10)()
        list(notebook_launcher(train, (Net(), Config(2.0)), 2, start_method={method!r}))
    """)
    assert cell.error is None
    assert cell.result == "[18.0, 18.0]"


def test_results_are_of_the_notebooks_own_classes(cells):
    cell = cells.run("""
        def train(net): return net, Config(5.0)
        net, config = notebook_launcher(train, (Net(),), 2, start_method="forkserver")[1]
        type(net) is Net, type(config) is Config, config.lr
    """)
    assert cell.result == "(True, True, 5.0)"


def test_the_notebooks_own_classes_stay_as_they_are(cells):
    cells.run("""
        class Scaled(torch.nn.Linear):
            def scale(self): return helper(1)
        class TooBigError(Exception):
            def limit(self): return helper(2)
        def train(fail):
            if fail: raise TooBigError("5")
            return Scaled(1, 1)
        scaled = notebook_launcher(train, (False,), 2, start_method="forkserver")[1]
        try:
            notebook_launcher(train, (True,), 2, start_method="forkserver")
        except RankError as error:
            too_big = error.original(TooBigError)
    """)
    cell = cells.run("""
        def helper(x): return x * 1000
        found = scaled.scale(), Scaled(1, 1).scale(), too_big.limit(), TooBigError().limit()
        def helper(x): return x * factor
        found
    """)
    assert cell.error is None
    assert cell.result == "(1000, 1000, 2000, 2000)"


def test_a_class_that_has_gone_from_the_notebook_comes_back_with_what_is_of_it(cells):
    cell = cells.run("""
        import gc
        class Gone:
            n = 3
        def train(gone, began):
            while not os.path.exists(began): threading.Event().wait(0.01)
            return gone
        began = os.path.abspath("began")
        job = nbstate.launch(train, Gone(), began, num_processes=2, start_method="forkserver")
        del Gone
        gc.collect()
        open(began, "w").close()
        [found.n for found in job.wait()]
    """)
    assert cell.error is None
    assert cell.result == "[3, 3]"


def test_a_filter_for_warnings_of_a_kind_that_the_notebook_defines(cells):
    cell = cells.run("""
        import warnings
        class Mine(UserWarning): ...
        def train():
            try:
                warnings.warn("hello", Mine)
            except Mine as error:
                return str(error)
        with warnings.catch_warnings():
            warnings.simplefilter("error", Mine)
            results = list(notebook_launcher(train, (), 2, start_method="forkserver"))
        results
    """)
    assert cell.error is None
    assert cell.result == "['hello', 'hello']"


def test_a_cell_that_ran_again_gives_the_new_definition(cells):
    cells.run("def version(): return 1")
    first = cells.run("list(notebook_launcher(version, (), 2, start_method='forkserver'))")
    cells.run("def version(): return 2")
    second = cells.run("list(notebook_launcher(version, (), 2, start_method='forkserver'))")
    assert (first.result, second.result) == ("[1, 1]", "[2, 2]")


def test_an_error_shows_the_notebooks_lines(cells):
    cell = cells.run("""
        def train():
            raise ValueError("boom")
        notebook_launcher(train, (), 2, start_method="forkserver")
    """)
    assert ": ValueError: boom" in cell.error.evalue
    assert "Cell In[" in cell.error.traceback
    assert 'raise ValueError("boom")' in cell.error.traceback


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "notebook_launcher(print, (1, {'db': threading.Lock()}), 2",
            "args[1]['db'] cannot travel",
        ),
        ("notebook_launcher(uses_closure(), (), 2", "closure variable 'lock' cannot travel"),
        ("notebook_launcher(uses_global, (), 2", "global variable 'held' cannot travel"),
        ("notebook_launcher(print, (), 2, kwargs={'end': held}", "kwargs['end'] cannot travel"),
    ],
)
def test_what_cannot_travel_is_named_before_any_process_starts(cells, call, told):
    cell = cells.run(f"""
        held = threading.Lock()
        def uses_closure():
            lock = threading.Lock()
            def train(): return lock
            return train
        def uses_global(): return held
        {call}, start_method="forkserver")
    """)
    assert cell.error.ename == "UnpicklableError"
    assert told in cell.error.evalue
    assert cell.stdout == ""


def test_surroundings_are_the_kernels(cells):
    cells.run("""
        open("beside.py", "w").write("value = 1")
        import beside, sys
        open("beside.py", "w").write("value = 'edited since'")
        os.environ["MINE"] = "yes"
        import warnings
        warnings.filterwarnings("error", message="ours")
        torch.manual_seed(7); np.random.seed(7)
    """)
    cell = cells.run("""
        def look():
            import beside, warnings
            try:
                warnings.warn("ours")
                warned = False
            except UserWarning:
                warned = True
            return (beside.value, os.getcwd(), os.environ["MINE"], warned, os.environ.get("RANK"),
                    torch.rand(1).item(), np.random.rand())
        first, second = notebook_launcher(look, (), 2, start_method="forkserver")
        here = torch.rand(1).item(), np.random.rand()
        told = first[:4] == ("edited since", os.getcwd(), "yes", True)
        told, first[4], second[4], first[5:] == second[5:] == here
    """)
    assert cell.error is None
    assert cell.result == "(True, '0', '1', True)"


def test_big_arguments_are_shared_and_writing_to_them_stays_private(cells):
    cell = cells.run("""
        import psutil
        big = torch.ones(50_000_000)             # 200 MB
        def measure(tensor):
            state = PartialState()
            total = tensor.sum().item()
            state.wait_for_everyone()
            proportional = psutil.Process().memory_full_info().pss
            state.wait_for_everyone()
            if state.process_index == 0:
                tensor[0] = 7.0
            state.wait_for_everyone()
            return total, proportional, tensor[0].item()
        def ask(tensor):
            return notebook_launcher(
                measure, (tensor,), 4, start_method="forkserver", threads_per_rank=1)
        results, small = ask(big), ask(big[:4].clone())
        extra = sum(r[1] for r in results) - sum(r[1] for r in small)
        del big
        extra < 300e6, {r[0] for r in results}, [r[2] for r in results]
    """)
    assert cell.error is None
    assert cell.result == "(True, {50000000.0}, [7.0, 1.0, 1.0, 1.0])"


def test_a_kernel_that_used_its_accelerator_launches_without_a_restart(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        import sys
        def train():
            ready = "torch._dynamo" in sys.modules    # a second of work, which no rank need do
            torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
            return PartialState().num_processes, ready
        first = notebook_launcher(train, (), 2)
        torch.cuda.is_initialized = lambda: True          # stands for a cell that used the GPU
        second = notebook_launcher(train, (), 2)
        list(first), list(second)
    """)
    assert cell.error is None
    assert cell.result == "([(2, True), (2, True)], [(2, True), (2, True)])"
    assert "no restart is needed" in cell.stdout
    refused = kernel.run("notebook_launcher(train, (), 2, start_method='fork')")
    assert refused.error.ename == "RuntimeError"
    assert "start_method='fork': this kernel has already used" in refused.error.evalue


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_kernel_takes_fresh_ranks_along(kernel, method):
    kernel.run(SETUP)
    kernel.start(f"""
        import subprocess, time
        def train():
            subprocess.Popen(["sleep", "600"])
            PartialState().wait_for_everyone()
            print("all here")
            time.sleep(600)
        notebook_launcher(train, (), 2, start_method={method!r})
    """)
    kernel.read_until(lambda: any("all here" in cell.stdout for cell in kernel.cells.values()))
    family = [p for p in kernel.children() if "resource_tracker" not in " ".join(p.cmdline())]
    kernel.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []


def test_an_interrupt_ends_fresh_ranks(kernel):
    kernel.run(SETUP)
    cell = kernel.start("""
        import time
        def train():
            print("up")
            time.sleep(600)
        notebook_launcher(train, (), 2, start_method="forkserver")
    """)
    kernel.read_until(lambda: "[0-1] up" in cell.stdout or cell.stdout.count("up") == 2)
    kernel.interrupt()
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    names = [" ".join(p.cmdline()) for p in kernel.children()]
    assert [n for n in names if "forkserver" not in n and "resource_tracker" not in n] == []


KILLED = "the template process, which it was forked from, was killed; the next launch starts a new"


def template(kernel):
    """Return the process from which the kernel's ranks are forked."""
    found = [p for p in kernel.children() if "multiprocessing.forkserver" in " ".join(p.cmdline())]
    return found[0] if found else None


def kill(process):
    """End a process, and return once it has: its parent may not have looked yet."""
    process.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)


def test_a_template_that_somebody_killed_is_started_anew(cells):
    cells.run("""
        import time
        def train(seconds=0):
            print("up", flush=True)
            time.sleep(seconds)
            return 1
        def again(seconds=0): return list(notebook_launcher(train, (seconds,), 2, **fresh))
        fresh = {"start_method": "forkserver", "view": "plain"}
        again()
    """)
    kill(template(cells))
    assert cells.run("again()").result == "[1, 1]"
    cell = cells.start("again(600)")
    cells.read_until(lambda: cell.stdout.count("up") == 2 or "[0-1] up" in cell.stdout)
    kill(template(cells))
    cells.wait(cell)
    assert cell.error.evalue.count(KILLED) == 2
    assert cells.run("again()").result == "[1, 1]"


def test_an_interrupt_while_the_template_starts_is_a_plain_one(kernel):
    kernel.run(SETUP)
    kernel.run("def train(): return PartialState().num_processes")
    cell = kernel.start("notebook_launcher(train, (), 2, start_method='forkserver')")
    kernel.read_until(lambda: template(kernel) is not None)
    kernel.signal(signal.SIGINT, group=True)
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    again = kernel.run("list(notebook_launcher(train, (), 2, start_method='forkserver'))")
    assert again.result == "[2, 2]"
    assert "Traceback" not in kernel.log


def test_a_script_without_a_guard_is_told_what_to_do(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from nbstate import notebook_launcher\n"
        "notebook_launcher(print, (), 2, start_method='spawn')\n"
    )
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert "exit code 1 while it imported unguarded.py, as every fresh process" in done.stderr
    assert done.stderr.count('under if __name__ == "__main__":') >= 2
    assert "freeze_support" not in done.stderr
