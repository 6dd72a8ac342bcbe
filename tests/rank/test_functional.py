"""What tensor parallel layers call in C++, on the timeline of traced ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.rank.conftest import lines

if TYPE_CHECKING:
    from tests.kernels import Kernel

SETUP = """
import functools, os, threading, time
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)
from nbstate import PartialState, launch
launch = functools.partial(launch, view="silent")

def cut_model(**plan):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    plan = plan or {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)

def in_sequence():
    return cut_model(**{
        "0": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0)),
    })

def steps(model, count=2):
    losses = []
    for step in range(count):
        torch.manual_seed(step)
        inputs = torch.randn(4, 6, requires_grad=True)
        loss = model(inputs).square().mean()
        loss.backward()
        losses.append((loss.item(), inputs.grad.tolist()))
    return losses, [parameter.grad.to_local().tolist() for parameter in model.parameters()]

def rows(job):
    table = job.timeline().table()
    return table[table["rank"] == 0]

def told(job):
    return [f"{row.op} {row.bytes} {row.group} {row.where.split(': ')[-1]}"
            for row in rows(job).itertuples()]
"""


def test_tensor_parallel_steps_are_on_the_timeline_and_the_same_to_the_bit(
    notebook: Kernel,
) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            found = steps(cut_model()), steps(in_sequence())
            return found, "CPU: registered" in torch._C._dispatch_dump("_c10d_functional::all_reduce")
        jobs = [launch(train, num_processes=2, trace=traced) for traced in (False, True)]
        plain, traced = [list(job.wait()) for job in jobs]
        print([found for found, _ in plain] == [found for found, _ in traced])
        print(len(jobs[0].timeline().calls), {ours for _, ours in plain})
        print((rows(jobs[1])["end"] > rows(jobs[1])["start"]).all())
        print(*[line for line in told(jobs[1]) if "loss" in line], sep=chr(10))
        """,
    )
    step = [
        "all_reduce 64 default group loss = model(inputs).square().mean()",
        "all_reduce 96 default group loss.backward()",
    ]
    # torch has called these by several names.
    gathered, scattered = said[7].split()[0], said[8].split()[0]
    assert gathered.startswith("all_gather")
    assert scattered.startswith("reduce_scatter")
    step_in_sequence = [
        f"{gathered} 192 default group loss = model(inputs).square().mean()",
        f"{scattered} 64 default group loss = model(inputs).square().mean()",
        f"{gathered} 128 default group loss.backward()",
        f"{scattered} 96 default group loss.backward()",
    ]
    assert said == ["True", "0 {False}", "True", *2 * step, *2 * step_in_sequence]


def test_a_compiled_model_shows_the_users_lines(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            models = [torch.compile(cut_model(), backend=name) for name in ("eager", "aot_eager")]
            return [steps(model) for model in models]
        jobs = [launch(train, num_processes=2, trace=traced) for traced in (False, True)]
        plain, traced = [list(job.wait()) for job in jobs]
        print(plain == traced)
        print(*[line for line in told(jobs[1]) if "loss" in line], sep=chr(10))
        """,
    )
    step = [
        "all_reduce 64 default group loss = model(inputs).square().mean()",
        "all_reduce 96 default group loss.backward()",
    ]
    assert said == ["True", *4 * step]


def test_a_rank_that_comes_late_is_named(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            rank = PartialState().process_index
            model = cut_model()
            while rank == 1 and not os.path.exists("go"):
                time.sleep(0.01)
            model(torch.ones(2, 6)).sum().item()
        job = launch(train, num_processes=2, trace=True)
        while "all_reduce of float32[2, 4]" not in job.stacks():
            pass
        open("go", "w").close()
        job.wait()
        table = job.timeline().table()
        table = table[table["op"] == "all_reduce"].set_index("rank")
        print(table["late"][0] == 0, table["late"][1] > 0)
        print((table["end"] > table["start"][1]).all())
        """,
    )
    assert said == ["True True", "True"]  # rank 0's goes on until rank 1 has come


def test_every_functional_collective_is_told_by_the_name_it_was_called_by(
    notebook: Kernel,
) -> None:
    said = lines(
        notebook,
        """
        def call_all(group):
            x = torch.arange(4.0) + dist.get_rank()
            y, name = x.clone().requires_grad_(), group.group_name
            ops = torch.ops._c10d_functional
            found = [
                funcol.all_reduce(x, "sum", group),
                funcol.broadcast(x, 0, group),
                funcol.all_gather_tensor(x, 0, group),
                funcol.reduce_scatter_tensor(x, "sum", 0, group),
                funcol.all_to_all_single(x, None, None, group),
                *funcol.all_reduce_coalesced([x, x[:2]], "sum", group),
                *funcol.all_gather_into_tensor_coalesced([x, x[:2]], group),
                *funcol.reduce_scatter_tensor_coalesced([x], "sum", [0], group),
                funcol.all_to_all_single_autograd(y, [2, 2], [2, 2], group),
                ops.wait_tensor(ops.all_reduce_(x.clone(), "sum", name)),
                torch.ops._dtensor.shard_dim_alltoall(x.view(2, 2), 0, 1, name),
            ]
            (2 * found[-3]).sum().backward()
            return [each.tolist() for each in (*found, y.grad)]
        def train():
            rank = PartialState().process_index
            some = dist.new_group([0, 2])
            found = None if rank == 1 else call_all(some)
            dist.barrier()
            return found
        jobs = [launch(train, num_processes=3, trace=traced) for traced in (False, True)]
        plain, traced = [list(job.wait()) for job in jobs]
        print(plain == traced, plain[2][0])
        found = rows(jobs[1])
        found = found[found["group"] == "group of ranks 0, 2"].sort_values("call")
        print(*[f"{row.op} {row.bytes}" for row in found.itertuples()], sep=chr(10))
        """,
    )
    assert said[0] == "True [2.0, 4.0, 6.0, 8.0]"
    assert said[1:11] == [
        "all_reduce 16",
        "broadcast 16",
        "all_gather_tensor 32",
        "reduce_scatter_tensor 8",
        "all_to_all_single 16",
        "all_reduce_coalesced 24",
        "all_gather_into_tensor_coalesced 48",
        "reduce_scatter_tensor_coalesced 8",
        "all_to_all_single_autograd 16",
        "all_reduce_ 16",
    ]
    assert said[11] == "shard_dim_alltoall 16"
    assert said[12].startswith("all_to_all_single")  # in the backward pass
    assert len(said) == 13


def test_a_backward_pass_in_another_thread_is_the_main_ones_line(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            inputs = torch.ones(2, 6, requires_grad=True)
            backward = threading.Thread(target=cut_model()(inputs).sum().backward)
            backward.start()
            backward.join()
        job = launch(train, num_processes=2, trace=True)
        job.wait()
        print(told(job)[-1])
        """,
    )
    assert said == ["all_reduce 48 default group backward.join()"]


def test_ranks_that_call_different_ones_are_told(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            rank = PartialState().process_index
            loss = cut_model()(torch.ones(2, 6, requires_grad=True)).sum()
            if rank == 1:
                loss.backward()
            else:
                dist.barrier()
        try:
            launch(train, num_processes=2, trace=True).wait()
        except Exception as error:
            print(error)
        """,
    )
    told = "\n".join(said)
    assert "the ranks call different collectives" in told
    assert "rank 0: barrier" in told
    assert "rank 1: all_reduce of float32[2, 6]" in told


def test_models_of_a_session_are_traced_that_were_made_before(notebook: Kernel) -> None:
    notebook.run("%load_ext nbstate\nimport nbstate\nsession = nbstate.Session(2)")
    try:
        cell = notebook.run("""%%ranks --quiet
PartialState()
model = cut_model()
steps(model, 1)
with nbstate.trace():
    steps(model, 1)
steps(model, 1)""")
        assert cell.error is None, cell.error
        assert notebook.eval("[f'{row.op} {row.bytes}' for row in rows(session).itertuples()]") == [
            "all_reduce 64",
            "all_reduce 96",
        ]
    finally:
        notebook.run("session.close()")
