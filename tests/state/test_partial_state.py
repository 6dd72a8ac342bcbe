"""PartialState in one process, in launched ranks, under torchrun and under MPI's variables."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from nbstate import InitProcessGroupKwargs, PartialState, debug_launcher, is_main_process
from tests.state.processes import free_port, python, side_by_side, torchrun

FACTS = """
from nbstate import PartialState, is_main_process
state = PartialState()
facts = [state.process_index, state.num_processes, state.local_process_index, state.backend,
         str(state.distributed_type), str(state.device), state.is_main_process,
         state.is_local_main_process, state.is_last_process, state.use_distributed,
         is_main_process(), state.fork_launched]
"""


def facts_of_ranks(world_size, *, fork_launched=False):
    return [
        [rank, world_size, rank, "gloo", "DistributedType.MULTI_CPU", "cpu", rank == 0,
         rank == 0, rank == world_size - 1, world_size > 1, rank == 0, fork_launched]
        for rank in range(world_size)
    ]  # fmt: skip


def facts():
    state = PartialState()
    return [
        state.process_index, state.num_processes, state.local_process_index, state.backend,
        str(state.distributed_type), str(state.device), state.is_main_process,
        state.is_local_main_process, state.is_last_process, state.use_distributed,
        is_main_process(), state.fork_launched,
    ]  # fmt: skip


def test_one_process():
    state = PartialState()

    assert facts() == [0, 1, 0, None, "DistributedType.NO", "cpu", True, True, True, False, True,
                       False]  # fmt: skip
    assert state.device == state.default_device == torch.device("cpu")
    assert state.mixed_precision == "no"
    assert state.debug is False
    assert repr(state).splitlines() == [
        "Distributed type: DistributedType.NO",
        "Backend: None",
        "Num processes: 1",
        "Process index: 0",
        "Local process index: 0",
        "Device: cpu",
        "Mixed precision: no",
    ]
    state.wait_for_everyone()
    state.set_device()
    state.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_launched_ranks_agree_with_torch(world_size):
    def train():
        told = facts()
        assert [dist.get_rank(), dist.get_world_size()] == told[:2]
        return told

    assert list(debug_launcher(train, num_processes=world_size)) == facts_of_ranks(
        world_size, fork_launched=True
    )


def test_with_and_without_cpu_it_is_the_same_on_a_machine_without_accelerator():
    assert debug_launcher(lambda: repr(PartialState(cpu=True))) == debug_launcher(
        lambda: repr(PartialState())
    )


def test_torchrun(tmp_path):
    lines = """
import io
import torch.distributed as dist
out = io.StringIO()
state.print("hello", file=out)
before = dist.is_initialized()
state.destroy_process_group()
state.destroy_process_group()
report([facts, out.getvalue(), before, dist.is_initialized()])
"""
    told = torchrun(tmp_path, FACTS + lines, 2)

    assert told == [
        [facts, hello, True, False]
        for facts, hello in zip(facts_of_ranks(2), ("hello\n", ""), strict=True)
    ]


def test_several_machines(tmp_path):
    """Two machines of two processes each, played by one."""
    port = free_port()
    environments = [
        {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
         "GROUP_RANK": str(rank // 2), "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
         "MASTER_PORT": port}
        for rank in range(4)
    ]  # fmt: skip
    lines = """
from nbstate import PartialState
state = PartialState()
order = []
with state.local_main_process_first():
    order.append(state.local_process_index)
index = lambda: state.process_index
told = [
    state.process_index, state.local_process_index, state.is_main_process,
    state.is_local_main_process, state.on_local_main_process(index)(),
    state.on_local_process(index, local_process_index=1)(),
    state.on_local_main_process(index, share=True)(),
    state.on_local_process(index, local_process_index=1, share=True)(),
    state.on_last_process(index, share=True)(),
]
state.wait_for_everyone()
report(told)
"""
    assert side_by_side(tmp_path, lines, environments) == [
        [0, 0, True, True, 0, None, 0, 1, 3],
        [1, 1, False, False, None, 1, 0, 1, 3],
        [2, 0, False, True, 2, None, 2, 3, 3],
        [3, 1, False, False, None, 3, 2, 3, 3],
    ]


@pytest.mark.parametrize(
    ("before", "variables"),
    [
        ("", {"GROUP_WORLD_SIZE": "2"}),
        ("import torch.distributed as dist; dist.init_process_group('gloo')", {}),
    ],
    ids=["several machines, as srun starts them", "a group made by hand"],
)
def test_a_local_main_process_goes_first_where_nobody_says_how_many_are_local(
    tmp_path, before, variables
):
    lines = f"""
{before}
from nbstate import PartialState
state = PartialState()
told = []
for text in ("", "no such dataset"):
    try:
        with state.local_main_process_first():
            if text and state.is_local_main_process:
                raise ValueError(text)
            told.append("went on")
    except (ValueError, RuntimeError) as error:
        told.append(str(error))
told.append(state.on_local_main_process(os.getenv, share=True)("RANK"))
state.wait_for_everyone()
report(told)
"""
    port = free_port()
    environments = [
        {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), **variables,
         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for rank in range(2)
    ]  # fmt: skip

    failed = "no such dataset"
    assert side_by_side(tmp_path, lines, environments) == [
        ["went on", failed, "0"],
        ["went on", f"rank 0 went first and failed: ValueError: {failed}", "0"],
    ]


@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size"),
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
         "MV2_COMM_WORLD_LOCAL_SIZE"),
    ],
)  # fmt: skip
def test_mpi(tmp_path, rank, size, local_rank, local_size):
    port = free_port()
    environments = [
        {rank: str(index), size: "2", local_rank: str(index), local_size: "2",
         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for index in range(2)
    ]  # fmt: skip
    lines = FACTS + "state.wait_for_everyone(); report(facts, state.process_index)"

    assert side_by_side(tmp_path, lines, environments) == facts_of_ranks(2)


def test_contradictory_variables_end_the_construction_and_not_the_glance(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")

    assert is_main_process() is False
    with pytest.raises(ValueError, match="RANK=3 without WORLD_SIZE"):
        PartialState()
    assert not PartialState.is_initialized()


def test_asking_for_the_main_process_makes_no_state(monkeypatch):
    assert is_main_process() is True
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")

    assert is_main_process() is False
    assert not PartialState.is_initialized()


def test_a_group_that_there_is_is_used_as_it_is():
    def train():
        dist.init_process_group("gloo")
        made = dist.group.WORLD
        state = PartialState()
        return dist.group.WORLD is made, state.num_processes, state.process_index

    assert list(debug_launcher(train)) == [(True, 2, 0), (True, 2, 1)]


def test_a_group_made_by_hand_counts_without_any_variables(tmp_path):
    lines = f"""
import torch.distributed as dist
rank = int(os.environ["MY_RANK"])
dist.init_process_group("gloo", init_method="file://{tmp_path}/meeting", rank=rank, world_size=2)
{FACTS}
state.wait_for_everyone()
report(facts, rank)
"""
    environments = [{"MY_RANK": "0"}, {"MY_RANK": "1"}]

    assert side_by_side(tmp_path, lines, environments) == facts_of_ranks(2)


def test_ranks_may_meet_through_a_file(tmp_path):
    lines = f"""
from nbstate import PartialState
rank = int(os.environ["MY_RANK"])
state = PartialState(init_method="file://{tmp_path}/meeting", rank=rank, world_size=2)
state.wait_for_everyone()
report([state.process_index, state.num_processes], rank)
"""
    assert side_by_side(tmp_path, lines, [{"MY_RANK": "0"}, {"MY_RANK": "1"}]) == [[0, 2], [1, 2]]


def test_the_timeout_given_is_the_one_in_force():
    def train():
        given = InitProcessGroupKwargs(timeout=timedelta(seconds=7)).to_kwargs()
        state = PartialState(**given)
        group = dist.group.WORLD._get_backend(torch.device("cpu"))
        return group.options._timeout, "Timeout of collectives: 0:00:07" in repr(state)

    assert list(debug_launcher(train)) == [(timedelta(seconds=7), True)] * 2


def test_backends_that_are_not_there_are_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"backend='carrier-pigeon' .*'gloo'"):
        PartialState(backend="carrier-pigeon")
    PartialState()
    with pytest.raises(ValueError, match="carrier-pigeon"):
        PartialState(backend="cpu:carrier-pigeon,cuda:gloo")


def test_a_timeout_in_seconds_is_told_what_it_should_be():
    with pytest.raises(TypeError, match="timedelta"):
        PartialState(timeout=30)


def test_a_second_wish_that_differs_is_refused_with_old_and_new():
    def train():
        PartialState(timeout=timedelta(seconds=30))
        PartialState()
        PartialState(timeout=timedelta(seconds=30), backend="gloo")
        with pytest.raises(ValueError, match=r"timeout=0:00:30, and timeout=0:01:00"):
            PartialState(timeout=timedelta(minutes=1))
        PartialState.reset()
        with pytest.warns(UserWarning, match=r"timeout=0:01:00 has no effect"):
            state = PartialState(timeout=timedelta(minutes=1))
        assert "Timeout" not in repr(state)

    debug_launcher(train)


def test_the_launchers_precision_is_shown(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert PartialState().mixed_precision == "bf16"


def test_a_precision_of_the_launcher_that_is_none(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp12")
    with pytest.raises(ValueError, match="ACCELERATE_MIXED_PRECISION='fp12'"):
        PartialState()


def test_debug_mode(monkeypatch):
    assert list(debug_launcher(lambda: PartialState().debug)) == [True, True]
    state = PartialState()
    state.debug = True
    assert PartialState().debug is True
    PartialState.reset()
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "1")
    assert PartialState().debug is True


def test_the_launcher_keeps_the_group_and_a_given_one_is_destroyed():
    def train():
        state = PartialState()
        own = dist.new_group([0, 1])
        state.destroy_process_group(own)
        with pytest.raises((ValueError, TypeError)):  # the latter from older torch
            dist.get_backend(own)
        state.destroy_process_group()
        return dist.is_initialized()

    assert list(debug_launcher(train)) == [True, True]


def test_importing_the_states_touches_no_notebook_library():
    lines = "import sys, nbstate.state; print({'IPython', 'ipywidgets'} & set(sys.modules))"

    assert python(["-c", lines]).stdout.strip() == "set()"
