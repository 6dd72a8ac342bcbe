"""`trace=True`: collectives that do not match raise on every rank instead of hanging."""

from __future__ import annotations

import pytest

from tests.faults.conftest import forked

MISMATCHES = {
    "different operations": (
        "dist.all_reduce(torch.ones(3)) if rank else dist.broadcast(torch.ones(3), src=0)",
        ["rank 0: broadcast of float32[3] from rank 0", "rank 1: all_reduce SUM of float32[3]"],
    ),
    "different shapes": (
        "dist.all_reduce(torch.ones(3 + rank))",
        ["rank 0: all_reduce SUM of float32[3]", "rank 1: all_reduce SUM of float32[4]"],
    ),
    "different types": (
        "dist.all_reduce(torch.ones(2, dtype=(torch.int64, torch.float32)[rank]))",
        ["rank 0: all_reduce SUM of int64[2]", "rank 1: all_reduce SUM of float32[2]"],
    ),
    "different roots": (
        "dist.broadcast(torch.ones(3), src=rank)",
        ["from rank 0", "from rank 1"],
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_raises_on_all_ranks_and_shows_both_calls(notebook, name):
    call, told = MISMATCHES[name]
    cell = notebook.run(f"""
        def train():
            rank = PartialState().process_index
            dist.barrier()
            {call}
        try:
            notebook_launcher(train, num_processes=2, trace=True, timeout=60)
        except RankError as error:
            print(error)
            print([f.type_name.rpartition(".")[2] for f in error.failures.values()])
    """)
    assert cell.error is None
    assert "['DistributedOperationException', 'DistributedOperationException']" in cell.stdout
    assert "call 2 of the default group (Cell In[" in cell.stdout
    for words in told:
        assert words in cell.stdout


def test_a_collective_that_a_rank_never_calls_raises(notebook):
    cell = notebook.run("""
        def train():
            if PartialState().is_main_process:
                dist.all_gather_object([None, None], 1)
        notebook_launcher(train, num_processes=2, trace=True, timeout=60)
    """)
    assert (
        "DistributedOperationException: a collective that rank 1 never calls" in cell.error.evalue
    )
    assert "rank 0: all_gather_object, call 1 of the default group (Cell In[" in cell.error.evalue


IN_BACKWARD = {
    "calls something else": (
        "dist.all_reduce(torch.ones(3))",
        [
            "DistributedOperationException: the ranks call different collectives",
            "rank 0: all_reduce_ddp_bucket of float32[6], call 7 of the default group (Cell In[",
            "rank 1: all_reduce SUM of float32[3], call 7 of the default group (Cell In[",
        ],
    ),
    "has other parameters": (
        "loss = other(torch.ones(1, 2)).sum()",
        [
            "rank 0: all_reduce_ddp_bucket of float32[6], call 7 of the default group (Cell In[",
            "rank 1: all_reduce_ddp_bucket of float32[9], call 7 of the default group (Cell In[",
        ],
    ),
    "returns": (
        "return",
        [
            "DistributedOperationException: a collective that rank 1 never calls: it has returned",
            "rank 0: all_reduce_ddp_bucket of float32[6], call 7 of the default group (Cell In[",
        ],
    ),
    "raises": (
        "loss.register_hook(lambda gradient: 1 / 0)",
        ["rank 1 of 2: ZeroDivisionError: division by zero"],
    ),
}


@pytest.mark.parametrize("name", IN_BACKWARD)
def test_where_one_rank_has_another_backward_pass_all_end_and_are_told(notebook, name):
    call, told = IN_BACKWARD[name]
    cell = notebook.run(f"""
        from torch.nn.parallel import DistributedDataParallel
        def train():
            rank = PartialState().process_index
            model = DistributedDataParallel(torch.nn.Linear(2, 2))
            other = DistributedDataParallel(torch.nn.Linear(2, 3))
            for step in range(3):  # after the first one the buckets are made anew
                loss = model(torch.ones(1, 2)).sum()
                if rank == 1 and step == 2:
                    {call}
                loss.backward()
        notebook_launcher(train, num_processes=2, trace=True, timeout=60)
    """)
    for words in told:
        assert words in cell.error.evalue


@forked("the watch is the kernel's")
def test_a_rank_that_waits_for_long_is_told_of(notebook):
    cell = notebook.run("""
        def train():
            if PartialState().is_main_process:
                dist.all_reduce(torch.ones(1))
            while not os.path.exists("told"):
                time.sleep(0.01)
            if not PartialState().is_main_process:
                dist.all_reduce(torch.ones(1))
        job = launch(train, num_processes=2, trace=True, view="silent")
        while not job.notes:
            time.sleep(0.01)
        open("told", "w").close()
        job.wait()
        print(job.notes[0])
    """)
    assert "rank 0: all_reduce SUM of float32[1], call 1 of the default group" in cell.stdout
    assert "has not come: rank 1 Cell In[" in cell.stdout


def test_a_right_program_runs_as_without(notebook):
    cell = notebook.run("""
        from torch.nn.parallel import DistributedDataParallel
        from nbstate import gather_object
        def train():
            rank = PartialState().process_index
            group = dist.new_group([0, 1])
            total = torch.ones(2) * rank
            dist.all_reduce(total)
            if rank != 2:
                later = dist.all_reduce(total, group=group, async_op=True)
            if rank == 0:
                dist.send(torch.ones(1), 1)
            elif rank == 1:
                dist.recv(torch.ones(1), 0)
            if rank != 2:
                later.wait()
            names = [None] * 3
            dist.all_gather_object(names, "x" * (rank + 1) * 100)
            dist.broadcast_object_list(names, src=1)
            model = DistributedDataParallel(torch.nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
            with model.join():
                for step in range(rank):
                    model(torch.ones(1, 2)).sum().backward()
            PartialState().wait_for_everyone()
            return total.tolist(), len(names[2]), len(gather_object(["a"] * rank))
        list(notebook_launcher(train, num_processes=3, trace=True, timeout=60))
    """)
    assert cell.error is None
    assert cell.result == "[([6.0, 6.0], 300, 3), ([6.0, 6.0], 300, 3), ([3.0, 3.0], 300, 3)]"
