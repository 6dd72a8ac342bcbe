"""What DistributedDataParallel reduces in C++, on the timeline of traced ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.rank.conftest import lines

if TYPE_CHECKING:
    from tests.kernels import Kernel

SETUP = """
import contextlib, functools, os, threading, time
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from nbstate import PartialState, launch
launch = functools.partial(launch, view="silent")

def layers(*widths):
    torch.manual_seed(0)
    return torch.nn.Sequential(*map(torch.nn.Linear, widths, widths[1:]))

def steps(model, count, width):
    for step in range(count):
        torch.manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(4, width)).square().mean()
        loss.backward()
    return [parameter.grad.tolist() for parameter in model.parameters()]

def rows(job):
    table = job.timeline().table()
    return table[table["rank"] == 0]
"""


def test_buckets_are_on_the_timeline_with_their_bytes_and_the_users_line(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            model = DistributedDataParallel(layers(400, 800, 400), bucket_cap_mb=1)
            steps(model, 3, 400)
        job = launch(train, num_processes=2, trace=True)
        job.wait()
        table = job.timeline().table()
        buckets = table[table["op"] == "all_reduce_ddp_bucket"]
        whole = 4 * sum(parameter.numel() for parameter in layers(400, 800, 400).parameters())
        print([int(buckets["bytes"][buckets["rank"] == rank].sum()) / whole for rank in (0, 1)])
        print(list(buckets["bytes"])[0] == whole, len(buckets))
        print({where.split(": ")[-1] for where in buckets["where"]}, set(buckets["group"]))
        print({row.details for row in buckets.itertuples() if row.bytes == whole})
        print((buckets["end"] > buckets["start"]).all())
        print(job.timeline())
        """,
    )
    # In the first pass all is one bucket, later there is one for about each megabyte.
    assert said[:5] == [
        "[3.0, 3.0]",
        "True 10",
        "{'loss.backward()'} {'default group'}",
        "{'of float32[641200]'}",
        "True",
    ]
    assert said[5] == "each rank: 8 collectives"


def test_a_rank_that_comes_late_to_a_bucket_is_named(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            rank = PartialState().process_index
            model = DistributedDataParallel(layers(3, 2))
            loss = model(torch.ones(1, 3)).sum()
            while rank == 1 and not os.path.exists("go"):
                time.sleep(0.01)
            loss.backward()
        job = launch(train, num_processes=2, trace=True)
        while "all_reduce_ddp_bucket" not in job.stacks():
            pass
        open("go", "w").close()
        job.wait()
        table = job.timeline().table()
        bucket = table[table["op"] == "all_reduce_ddp_bucket"].set_index("rank")
        print(bucket["late"][0] == 0, bucket["late"][1] > 0)
        print((bucket["end"] > bucket["start"][1]).all())
        """,
    )
    assert said == ["True True", "True"]  # rank 0's goes on until rank 1 has come


def test_what_brings_parameters_and_buffers_to_the_ranks_is_on_the_timeline(
    notebook: Kernel,
) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            layers = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
            model = DistributedDataParallel(layers)
            steps(model, 1, 5)
        job = launch(train, num_processes=2, trace=True)
        job.wait()
        for row in rows(job).itertuples():
            print(row.op, row.bytes, row.where.split(": ")[-1])
        """,
    )
    assert said == [
        "broadcast_model 160 model = DistributedDataParallel(layers)",
        "broadcast_model 8 model = DistributedDataParallel(layers)",
        "broadcast_model 32 loss = model(torch.randn(4, width)).square().mean()",
        "broadcast_model 8 loss = model(torch.randn(4, width)).square().mean()",
        "all_reduce_ddp_bucket 128 loss.backward()",
    ]


def test_gradients_are_those_of_an_untraced_run_to_the_bit(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train(traced):
            rank = PartialState().process_index
            some = dist.new_group([0, 2])
            found = {}
            for options in (
                {},
                {"find_unused_parameters": True},
                {"static_graph": True},
                {"gradient_as_bucket_view": True},
                {"process_group": some},
            ):
                if rank == 1 and "process_group" in options:
                    continue
                model = DistributedDataParallel(layers(7, 5, 3), **options)
                found[str(list(options))] = steps(model, 4, 7)
            compiled = torch.compile(DistributedDataParallel(layers(7, 3)), backend="eager")
            found["compiled"] = steps(compiled, 3, 7)
            model = DistributedDataParallel(layers(7, 3))
            with model.join():
                found["join"] = steps(model, 1 + rank, 7)
            return found
        jobs = [launch(train, (traced,), num_processes=3, trace=traced) for traced in (False, True)]
        plain, traced = [list(job.wait()) for job in jobs]
        print({name: plain[0][name] == traced[0][name] for name in plain[0]})
        print(plain == traced)
        ops = rows(jobs[1])["op"].value_counts()
        print(ops["all_reduce_ddp_bucket"], ops["all_reduce_ddp_used_parameters"])
        print(sorted(set(rows(jobs[1])["group"])))
        """,
    )
    assert "False" not in said[0]
    assert said[1] == "True"
    assert said[2] == "26 5"  # 4 each of the five, 3 of the compiled one, 3 in the joined steps
    assert said[3] == "['default group', 'group of ranks 0, 2']"


def test_a_communication_hook_of_the_users_is_his_and_is_on_the_timeline(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            model = DistributedDataParallel(layers(10, 1))
            steps(model, 1, 10)
            model.register_comm_hook(None, fp16_compress_hook)
            other = DistributedDataParallel(layers(10, 1))
            other._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
            return steps(model, 2, 10), steps(other, 1, 10)
        jobs = [launch(train, num_processes=2, trace=traced) for traced in (False, True)]
        plain, traced = [list(job.wait()) for job in jobs]
        print(plain == traced)
        found = rows(jobs[1])
        found = found[found["op"].str.startswith("all_reduce")]
        print([f"{row.op} {row.bytes}" for row in found.itertuples()])
        print({where.split(": ")[-1] for where in found["where"]})
        """,
    )
    assert said == [
        "True",
        "['all_reduce_ddp_bucket 44', 'all_reduce 22', 'all_reduce 22', 'all_reduce_ddp_bucket 22']",
        "{'loss.backward()'}",
    ]


def test_steps_without_synchronisation_show_no_bucket(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            model = DistributedDataParallel(layers(10, 1))
            with model.no_sync():
                steps(model, 3, 10)
            dist.barrier()
            steps(model, 1, 10)
        job = launch(train, num_processes=2, trace=True)
        job.wait()
        print(list(rows(job)["op"]))
        """,
    )
    assert said == ["['broadcast_model', 'barrier', 'all_reduce_ddp_bucket']"]


def test_a_backward_pass_in_another_thread_is_the_main_ones_line(notebook: Kernel) -> None:
    said = lines(
        notebook,
        """
        def train():
            PartialState()
            model = DistributedDataParallel(layers(10, 1))
            loss = model(torch.ones(1, 10)).sum()
            backward = threading.Thread(target=loss.backward)
            backward.start()
            backward.join()
        job = launch(train, num_processes=2, trace=True)
        job.wait()
        print([where.split(": ")[-1] for where in rows(job)["where"]][1:])
        """,
    )
    assert said == ["['backward.join()']"]


def test_models_of_a_session_are_traced_that_were_made_before(notebook: Kernel) -> None:
    notebook.run("%load_ext nbstate\nimport nbstate\nsession = nbstate.Session(2)")
    try:
        cell = notebook.run("""%%ranks --quiet
PartialState()
first, gone = (DistributedDataParallel(layers(10, 1)) for _ in range(2))
steps(first, 2, 10)
del gone
with nbstate.trace():
    steps(first, 1, 10)
    second = DistributedDataParallel(layers(20, 1))
    with nbstate.trace():
        steps(second, 1, 20)
steps(first, 1, 10)
del first, second
third = DistributedDataParallel(layers(30, 1))
with nbstate.trace():
    steps(third, 1, 30)""")
        assert cell.error is None, cell.error
        found = "[f'{row.op} {row.bytes}' for row in rows(session).itertuples()]"
        assert notebook.eval(found) == [
            "all_reduce_ddp_bucket 44",
            "broadcast_model 84",
            "all_reduce_ddp_bucket 84",
            "all_reduce_ddp_bucket 124",
        ]
    finally:
        notebook.run("session.close()")
