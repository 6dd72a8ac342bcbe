"""What only a machine with CUDA devices can show; skipped, with the reason, everywhere else."""

from __future__ import annotations

import ast

import pytest

from nbstate import devices

COUNT = devices.count() if devices.kind() == "cuda" else 0

pytestmark = pytest.mark.skipif(COUNT == 0, reason="needs a CUDA device that torch can use")
several = pytest.mark.skipif(COUNT < 2, reason="needs two CUDA devices")

SETUP = f"""
import ctypes, os
import torch, torch.distributed as dist
from nbstate import PartialState, devices, notebook_launcher

everything = dict(num_processes={COUNT}, isolate=True)

def train(weights=None):
    state = PartialState()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1).to(state.device)
    if weights is not None:
        model.load_state_dict(weights)
    x = torch.randn(256, 8, device=state.device)
    y = x.sum(dim=1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1], model.state_dict(), str(state.device)
"""


@pytest.fixture
def cuda(kernel):
    kernel.run(SETUP)
    return kernel


def result(cell):
    assert cell.error is None, cell.error
    return ast.literal_eval(cell.result)


def test_looking_for_devices_and_launching_wakes_nothing_in_the_kernel(cuda):
    cell = cuda.run("""
        found = devices.count(), devices.name(), devices.supports_fp8("cuda"), PartialState().device
        ran = notebook_launcher(train, (), **everything)
        devices.woken(), torch.cuda.is_initialized(), ran[0][1] < ran[0][0], found[0]
    """)
    assert result(cell) == (None, False, True, COUNT)
    assert "fresh" not in cell.stdout


def test_train_look_on_the_device_train_again(cuda):
    cell = cuda.run("""
        first = notebook_launcher(train, (), **everything)
        model = torch.nn.Linear(8, 1).cuda()                # the kernel looks at it on the device
        model.load_state_dict(first[0][2])
        seen = model(torch.ones(1, 8, device="cuda")).item()
        second = notebook_launcher(train, (model.state_dict(),), **everything)
        (second[0][0] < first[0][0] / 2, second[0][2]["weight"].device.type, devices.woken(),
         sorted(r[3] for r in first) == sorted(r[3] for r in second))
    """)
    assert result(cell) == (True, "cpu", "CUDA", True)
    assert "no restart is needed" in cell.stdout


def test_forking_is_refused_once_the_kernel_used_cuda(cuda):
    refused = cuda.run("""
        torch.zeros(1).cuda()
        notebook_launcher(train, (), start_method="fork", **everything)
    """)
    assert refused.error.ename == "RuntimeError"
    assert "start_method='fork': this kernel has already used CUDA" in refused.error.evalue
    assert "line 2, in <module>: torch.zeros(1).cuda())" in refused.error.evalue


def test_a_driver_that_was_woken_behind_torchs_back_is_noticed(cuda):
    cell = cuda.run("""
        before = devices.woken()
        driver = ctypes.CDLL("libcuda.so.1")
        loaded = devices.woken()
        driver.cuInit(0)
        after, flag = devices.woken(), torch.cuda.is_initialized()
        ran = notebook_launcher(train, (), **everything)
        before, loaded, after, flag, ran[0][1] < ran[0][0]
    """)
    assert result(cell) == (None, None, "CUDA's driver", False, True)


def test_cuda_tensors_among_arguments_and_variables_go_through_the_cpu(cuda):
    cell = cuda.run("""
        held = torch.ones(3).cuda()
        def add(batch):
            device = PartialState().device
            kinds = held.device.type, batch["x"].device.type
            return kinds, (held.to(device) + batch["x"].to(device)).sum().item()
        list(notebook_launcher(add, ({"x": torch.ones(3).cuda()},), **everything))
    """)
    assert result(cell) == [(("cpu", "cpu"), 6.0)] * COUNT
    assert (
        "args[0], global variable 'held': moved to the CPU on the way to the ranks" in cell.stdout
    )


def test_a_result_on_the_device_arrives_on_the_cpu(cuda):
    cell = cuda.run("""
        def make(): return torch.full((2,), 5.0, device=PartialState().device)
        made = notebook_launcher(make, (), **everything)
        made[0].device.type, made[0].tolist(), devices.woken()
    """)
    assert result(cell) == ("cpu", [5.0, 5.0], None)


def test_ranks_share_a_device_when_asked(cuda):
    cell = cuda.run(f"""
        def add_up():
            state = PartialState()
            rank = torch.tensor([float(state.process_index)], device=state.device)
            dist.all_reduce(rank)
            return rank.item(), state.backend, state.device.type
        list(notebook_launcher(add_up, (), {COUNT + 1}, oversubscribe=True))
    """)
    total = float(sum(range(COUNT + 1)))
    assert result(cell) == [(total, "gloo", "cuda")] * (COUNT + 1)
    refused = cuda.run(f"notebook_launcher(add_up, (), {COUNT + 1})")
    assert f"num_processes={COUNT + 1} with {COUNT} accelerators" in refused.error.evalue


def test_nccl_adds_up_over_all_devices(cuda):
    cell = cuda.run("""
        def add_up():
            state = PartialState()
            if not dist.is_initialized():                   # alone a state makes no group
                torch.cuda.set_device(state.device)
                dist.init_process_group("nccl")
            rank = torch.tensor([float(dist.get_rank() + 1)], device=state.device)
            dist.all_reduce(rank)
            return rank.item(), dist.get_backend()
        list(notebook_launcher(add_up, (), **everything))
    """)
    assert result(cell) == [(float(sum(range(1, COUNT + 1))), "nccl")] * COUNT


@several
def test_each_rank_has_a_device_of_its_own(cuda):
    cell = cuda.run("""
        def where():
            state = PartialState()
            torch.ones(1 << 20, device=state.device)
            others = [torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())
                      if i != state.device.index]
            return state.device.index, sum(others)
        sorted(notebook_launcher(where, (), **everything))
    """)
    assert result(cell) == [(index, 0) for index in range(COUNT)]


@several
def test_chosen_devices_are_all_that_a_rank_sees(cuda):
    cell = cuda.run("""
        def see():
            PartialState().device
            return os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count()
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        told = list(notebook_launcher(see, (), devices=[1, 0]))
        told, os.environ.get("CUDA_VISIBLE_DEVICES") == before
    """)
    assert result(cell) == ([("1", 1), ("0", 1)], True)


def test_a_single_chosen_device_is_all_that_the_one_rank_sees(cuda):
    cell = cuda.run(f"""
        def see(): return os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count()
        list(notebook_launcher(see, (), devices=[{COUNT - 1}])), torch.cuda.is_initialized()
    """)
    assert result(cell) == ([(str(COUNT - 1), 1)], False)
