"""How ranks start, and what is told of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nbstate.start.choice import choose_method

# Packages on record for waking a device when they are imported, or for importing those that do.
OFFENDERS = {
    *("bitsandbytes", "cupy", "deepspeed", "jax", "pynvml", "tensorflow"),
    *("torch_xla", "torchao", "transformers", "triton", "unsloth", "vllm"),
}


def test_a_launch_up_to_its_first_fork_loads_nothing_that_wakes_a_device():
    code = f"""
import os, sys
import nbstate
class Forked(Exception): pass
def fork():
    loaded = sorted({{name.partition(".")[0] for name in sys.modules}} & {OFFENDERS!r})
    with open("/proc/self/maps") as maps:
        drivers = [line for line in maps if "libcuda.so" in line or "libtpu" in line]
    os.write(1, repr((loaded, drivers)).encode())
    raise Forked
os.fork = fork
try:
    nbstate.launch(print, num_processes=2, view="silent").wait()
except BaseException:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "([], [])", done.stderr


@pytest.mark.parametrize(
    ("platform", "used", "method", "told"),
    [
        ("linux", None, "fork", False),
        ("linux", "CUDA", "forkserver", True),
        ("darwin", None, "forkserver", False),
        ("win32", None, "spawn", False),
    ],
)
def test_what_is_chosen_where_nothing_is_asked(monkeypatch, platform, used, method, told):
    monkeypatch.setattr(sys, "platform", platform)
    chosen, why = choose_method("auto", used, "")
    assert chosen == method
    assert bool(why) == told


@pytest.mark.parametrize(
    ("platform", "used", "says"),
    [("linux", "CUDA", "this kernel has already used CUDA"), ("win32", None, "cannot fork")],
)
def test_a_fork_that_cannot_work_is_refused(monkeypatch, platform, used, says):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(RuntimeError, match=says):
        choose_method("fork", used, "")


USED = "import torch\ntorch.cuda.is_initialized = lambda: True       # a cell used the GPU\n"


def test_train_look_train_again_in_one_kernel(kernel):
    kernel.run("import torch\nfrom nbstate import PartialState, notebook_launcher")
    kernel.run("""
        def train(weights=None):
            state = PartialState()
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 1)
            if weights is not None: model.load_state_dict(weights)
            x = torch.randn(64, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(20):
                optimizer.zero_grad()
                loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
                loss.backward()
                optimizer.step()
            state.wait_for_everyone()
            return loss.item(), model.state_dict()
    """)
    kernel.run("first = notebook_launcher(train, (), 2)")
    kernel.run(USED)
    again = kernel.run("""
        second = notebook_launcher(train, (first[0][1],), 2)
        third = notebook_launcher(train, (second[1][1],), 2)
        third[0][0] < second[0][0] < first[0][0], len(third)
    """)
    assert again.error is None
    assert again.result == "(True, 2)"
    assert again.stdout.count("no restart is needed") == 2


def test_ranks_on_the_cpu_are_forked_from_a_kernel_that_used_a_device(kernel):
    kernel.run(USED + "import threading\nfrom nbstate import notebook_launcher")
    cell = kernel.run("""
        held = threading.Lock()                              # cannot travel to a fresh process
        def train(): return held.locked()
        list(notebook_launcher(train, (), 2, cpu=True))
    """)
    assert cell.error is None
    assert cell.result == "[False, False]"


def test_a_containers_little_shared_memory_is_told_where_ranks_use_devices(kernel, tmp_path):
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / f"dev/davinci{number}").touch()
    kernel.run(f"""
        import functools, pathlib, shutil
        from nbstate import devices, notebook_launcher
        real = shutil.disk_usage
        def usage(path):
            small = dict(total=64 << 20, free=60 << 20) if str(path) == "/dev/shm" else dict()
            return real(path)._replace(**small)
        shutil.disk_usage = usage
        machine = dict(root=pathlib.Path({str(tmp_path)!r}), builds=frozenset({{"torch_npu"}}))
        devices.Machine = functools.partial(devices.Machine, **machine)
        def train(): return devices.kind()
    """)
    cell = kernel.run("notebook_launcher(train)")
    assert cell.result == "RankResults(['npu', 'npu'])"
    assert "/dev/shm has 64 MiB, 60 MiB free: " in cell.stdout
    assert "--shm-size" in cell.stdout
    on_the_cpu = kernel.run("notebook_launcher(train, (), 2, cpu=True)")
    assert on_the_cpu.error is None
    assert "/dev/shm" not in on_the_cpu.stdout
