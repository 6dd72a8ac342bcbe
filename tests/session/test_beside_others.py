"""Inside ranks that others have started, states and training work and what is shown is plain text.

The others: torchrun, engines of ipyparallel, and where they are installed the processes of
jupyter-distributed (it is not among the test dependencies: with it JupyterLab starts every kernel
anew) and the workers of nbdistributed (nor is it: tests/bench/nbdistributed.py says why).
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kernels import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

TRAIN = """
import torch
import nbstate
from nbstate import Accelerator, PartialState

state = PartialState()
accelerator = Accelerator()
torch.manual_seed(state.process_index)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.arange(16.0).reshape(8, 2), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for batch in data:
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
nbstate.log(loss=1.0)
nbstate.assert_same(model)
said = f"{state.process_index} of {state.num_processes} did {len(data)} batches\\n"
print(said, end="", flush=True)
"""

LAUNCH = """
import nbstate
def train():
    state = nbstate.PartialState()
    print("rank", state.process_index, "of", state.num_processes)
    return state.process_index
print(list(nbstate.notebook_launcher(train, num_processes=2)))
"""


def test_training_works_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    # torch's own threads may abort an interpreter that ends with its process group.
    script.write_text(TRAIN + "accelerator.end_training()\n")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*run, script], capture_output=True, text=True, check=False)
    said = ["0 of 2 did 2 batches", "1 of 2 did 2 batches"]
    assert sorted(done.stdout.splitlines()) == said, done.stderr


ENGINES = """
import ipyparallel
cluster = ipyparallel.Cluster(n=2, log_level=40)
engines = cluster.start_and_connect_sync()[:]

def said(code):
    asked = engines.execute(code, silent=False, block=False)
    asked.wait_for_output(120)
    asked.get()
    return asked.stdout, asked.stderr, asked.outputs

def become_ranks(port):
    for rank, client in enumerate(engines.client):
        place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables = {name: str(value) for name, value in place.items()}
        client.execute(f"import os; os.environ.update({variables})", block=True)
"""


@pytest.fixture
def with_engines(kernel: Kernel) -> Iterator[Kernel]:
    """A kernel with two engines of ipyparallel."""
    kernel.run(ENGINES)
    yield kernel
    kernel.run("cluster.stop_cluster_sync()")


def test_engines_of_ipyparallel_train_together_and_launch_ranks_of_their_own(with_engines):
    stdout, stderr, drawn = with_engines.eval(f"said({LAUNCH!r})")
    assert [text.splitlines()[:2] for text in stdout] == [
        ["[0] rank 0 of 2", "[1] rank 1 of 2"]
    ] * 2
    assert [text.splitlines()[-1] for text in stdout] == ["[0, 1]"] * 2
    assert (stderr, drawn) == (["", ""], [[], []])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with_engines.run(f"become_ranks({port})")
    stdout, stderr, drawn = with_engines.eval(f"said({TRAIN!r})")
    assert stdout == ["0 of 2 did 2 batches\n", "1 of 2 did 2 batches\n"]
    assert (stderr, drawn) == (["", ""], [[], []])


def test_processes_of_jupyter_distributed_train_together():
    kernel_group = pytest.importorskip("jupyter_distributed.kernel_group")

    async def run() -> Any:
        place = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        async with kernel_group.DistributedKernelGroup(2, env=place) as group:
            return await group.execute(TRAIN)

    ranks = asyncio.run(run()).ranks
    assert [(rank.status, [part.kind for part in rank.outputs]) for rank in ranks] == [
        ("ok", ["stream"])
    ] * 2
    assert [rank.outputs[0].content["text"] for rank in ranks] == [
        "0 of 2 did 2 batches\n",
        "1 of 2 did 2 batches\n",
    ]


@pytest.fixture
def with_workers() -> Iterator[Kernel]:
    """A kernel with two workers of nbdistributed."""
    pytest.importorskip("nbdistributed")
    with Kernel(env={"PYTHONPATH": str(ROOT)}) as kernel:
        kernel.run("from tests.bench import nbdistributed")
        try:
            started = kernel.run("nbdistributed.start(2)")
            assert started.error is None, started.error
            yield kernel
        finally:
            kernel.run("nbdistributed.stop()")


def test_workers_of_nbdistributed_train_together(with_workers):
    ranks = with_workers.eval(f"nbdistributed.answers({TRAIN!r})")
    assert ranks == [
        {"output": "0 of 2 did 2 batches\n", "status": "success", "rank": 0},
        {"output": "1 of 2 did 2 batches\n", "status": "success", "rank": 1},
    ]


def test_ranks_are_in_no_group_that_their_kernel_is_in(kernel):
    cell = kernel.run("""
        import nbstate, torch, torch.distributed as dist
        def total():
            nbstate.PartialState()
            dist.all_reduce(mine := torch.ones(1))
            return mine.item()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        print(list(nbstate.notebook_launcher(total, num_processes=2, view="silent")), total())
        with nbstate.Session(2) as session:
            print(list(session.run(total)))
    """)
    assert cell.stdout == "[2.0, 2.0] 1.0\n[2.0, 2.0]\n", cell.error


def test_a_rank_opens_no_session(two):
    cell = two.run("%%ranks 0\nnbstate.Session(2)")
    assert "this is rank 0 of 2 of a run: a rank cannot launch ranks" in cell.error.evalue
