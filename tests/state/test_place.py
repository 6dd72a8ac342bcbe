"""Where a process finds its place among others: environment variables alone."""

from __future__ import annotations

import pytest

from nbstate.state.place import Place, find_place, glance

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
RANK_1_OF_2 = {"RANK": "1", "WORLD_SIZE": "2"}


def test_no_variables_mean_no_place():
    assert find_place({}) is None
    assert glance({}) == Place()


def test_torchrun_variables_are_taken_as_they_are():
    environ = {
        **MEETING,
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
    }

    assert find_place(environ) == Place(5, 8, 1, 4, rendezvous=True)


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param(
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            id="Open MPI",
        ),
        pytest.param(
            {
                "MV2_COMM_WORLD_RANK": "5",
                "MV2_COMM_WORLD_SIZE": "8",
                "MV2_COMM_WORLD_LOCAL_RANK": "1",
                "MV2_COMM_WORLD_LOCAL_SIZE": "4",
            },
            id="MVAPICH2",
        ),
        pytest.param(
            {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
            id="Intel MPI",
        ),
    ],
)
def test_dialects_of_mpi(variables):
    assert find_place({**MEETING, **variables}) == Place(5, 8, 1, 4, rendezvous=True, mpi=True)
    assert glance(variables).rank == 5


def test_torchrun_inside_mpi_goes_by_torchrun():
    environ = {**MEETING, **RANK_1_OF_2, "PMI_RANK": "0", "PMI_SIZE": "1"}

    assert find_place(environ).rank == 1


def test_local_rank_is_the_rank_on_one_machine():
    assert find_place({**MEETING, **RANK_1_OF_2}).local_rank == 1


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        pytest.param({"RANK": "0"}, ["RANK=0 without WORLD_SIZE"], id="no world size"),
        pytest.param({"WORLD_SIZE": "2", **MEETING}, ["WORLD_SIZE=2 without RANK"], id="no rank"),
        pytest.param(
            {"RANK": "2", "WORLD_SIZE": "2", **MEETING},
            ["RANK=2 is not below WORLD_SIZE=2"],
            id="rank beyond the world",
        ),
        pytest.param(
            RANK_1_OF_2, ["WORLD_SIZE=2 without MASTER_ADDR and MASTER_PORT"], id="no meeting place"
        ),
        pytest.param(
            {**RANK_1_OF_2, "MASTER_ADDR": "127.0.0.1"}, ["without MASTER_PORT"], id="no port"
        ),
        pytest.param(
            {**RANK_1_OF_2, "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "1"},
            ["several machines", "LOCAL_RANK"],
            id="another machine and no local rank",
        ),
        pytest.param(
            {**RANK_1_OF_2, **MEETING, "GROUP_WORLD_SIZE": "2"},
            ["several machines", "LOCAL_RANK"],
            id="two machines and no local rank",
        ),
        pytest.param(
            {"RANK": "one", "WORLD_SIZE": "2", **MEETING}, ["RANK='one'"], id="not a number"
        ),
        pytest.param(
            {**RANK_1_OF_2, **MEETING, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"},
            ["LOCAL_RANK=3 is not below LOCAL_WORLD_SIZE=2"],
            id="local rank beyond",
        ),
        pytest.param(
            {**RANK_1_OF_2, **MEETING, "LOCAL_WORLD_SIZE": "4"},
            ["LOCAL_WORLD_SIZE=4 is above WORLD_SIZE=2"],
            id="more here than anywhere",
        ),
        pytest.param(
            {"RANK": "4", "WORLD_SIZE": "2"},
            ["RANK=4 is not below WORLD_SIZE=2", "without MASTER_ADDR and MASTER_PORT"],
            id="two mistakes in one error",
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "0"},
            ["OMPI_COMM_WORLD_RANK=0 without OMPI_COMM_WORLD_SIZE"],
            id="MPI, half set",
        ),
    ],
)
def test_contradictions_are_listed_and_a_glance_never_fails(environ, named):
    with pytest.raises(ValueError, match="does not say clearly") as caught:
        find_place(environ)

    assert all(each in str(caught.value) for each in named), caught.value
    assert glance(environ).rank >= 0


def test_one_process_needs_no_meeting_place():
    assert find_place({"RANK": "0", "WORLD_SIZE": "1"}) == Place(0, 1, 0, 1)
