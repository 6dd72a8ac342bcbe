"""Ranks that are stuck in a cell are told of in that cell, and in no other."""

from __future__ import annotations

import pytest

from tests.kernels import Kernel
from tests.session.conftest import SETUP

STUCK = "if rank != 2: dist.barrier()"


def opened(kernel, **options):
    told = ", ".join(f"{name}={value!r}" for name, value in options.items())
    kernel.run(SETUP.replace("Session(2)", f"Session(3, {told})"))
    cell = kernel.run("%%ranks --quiet\nstate = PartialState()\npair = dist.new_group([0, 1])")
    assert cell.error is None, cell.error
    return kernel


def pressed_once_told(kernel, code, words):
    cell = kernel.start(code)
    kernel.read_until(lambda: words in cell.stdout)
    kernel.interrupt()
    return kernel.wait(cell)


def closed(kernel):
    """Tell what it says when it closes."""
    return kernel.run("session.close()").stdout


@pytest.mark.parametrize("options", ["", " --quiet"])
def test_a_cell_that_is_stuck_says_who_waits_where_and_who_is_done(kernel, options):
    opened(kernel, stall_after=0.5)
    cell = pressed_once_told(kernel, f"%%ranks{options}\n{STUCK}", "in vain")
    assert "no sign of life from ranks 0, 1 for 0.5 s; rank 2 is done with the cell:" in cell.stdout
    assert cell.stdout.count("ranks 0, 1: in barrier, call 1 of the default group:\n") == 1
    number = cell.contents("execute_input")[0]["execution_count"]
    assert f"Cell In[{number}], line 2, in <module>: {STUCK}\n" in cell.stdout
    assert "IPython" not in cell.stdout
    assert "interrupted; the ranks keep their variables" in cell.error.evalue
    assert kernel.run("%%ranks\ndist.barrier()\n'on'").stdout == "[0-2] 'on'\n"
    assert closed(kernel) == ""


def test_a_function_that_is_stuck_is_told_of_too(kernel):
    opened(kernel, stall_after=0.5)
    kernel.run(
        "def wait():\n    if rank != 2:\n        dist.barrier(pair)\n        time.sleep(600)"
    )
    cell = pressed_once_told(kernel, "session.run(wait)", "time.sleep")
    assert "in wait: time.sleep(600)" in cell.stdout
    assert closed(kernel) == ""


def test_what_a_board_says_of_stuck_ranks_stays_in_the_cell(tmp_path):
    with Kernel(tmp_path, allow_stdin=True) as kernel:
        opened(kernel, stall_after=0.5)
        cell = kernel.start(f"%%ranks\n{STUCK}")
        kernel.read_until(lambda: "in vain" in str([c["content"] for c in cell.messages]))
        kernel.interrupt()
        kernel.wait(cell)
        assert cell.stdout.count("ranks 0, 1: in barrier") == 1
        assert closed(kernel) == ""


def test_ranks_without_work_and_ranks_at_work_are_not_stuck(kernel):
    opened(kernel, stall_after=0.3)
    kernel.run("time.sleep(1)")
    cell = kernel.run("""%%ranks 0
until = time.monotonic() + 1
while time.monotonic() < until: pass""")
    assert cell.stdout == ""
    assert closed(kernel) == ""


def test_sessions_look_for_stuck_ranks_as_launches_do(kernel):
    kernel.run(SETUP)
    assert kernel.run("session.options.stall_after").result == "60.0"
    assert closed(kernel) == ""


def test_a_traced_collective_that_a_rank_never_calls_raises_at_once(kernel):
    opened(kernel, trace=True)
    cell = kernel.run(f"%%ranks\n{STUCK}")
    assert cell.error.ename == "CellError"
    said = "a collective that rank 2 never calls: it has finished the cell"
    assert f"ranks 0-1 of 3: DistributedOperationException: {said}" in cell.error.evalue
    assert ": barrier, call 1 of the default group (Cell In[" in cell.error.evalue
    assert "rank 2: done" in cell.error.evalue
    assert cell.stdout == "", "the group is as good as before"
    cell = kernel.run("%%ranks 0,1\ndist.all_reduce(torch.ones(1))")
    assert "a collective that rank 2 never calls: it takes no part in the cell" in cell.error.evalue
    cell = kernel.run("%%ranks\ndist.barrier()\n'on'")
    assert cell.stdout == "[0-2] 'on'\n", cell.error
    assert closed(kernel) == ""


def test_traced_collectives_of_a_group_need_its_members_only(kernel):
    opened(kernel, trace=True)
    work = "t = torch.ones(1)\ntime.sleep(rank / 10)\ndist.all_reduce(t, group=pair)\nt.item()"
    assert kernel.run(f"%%ranks 0,1\n{work}").stdout == "[0-1] 2.0\n"
    cell = kernel.run("%%ranks\nif rank < 2:\n    " + work.replace("\n", "\n    "))
    assert cell.error is None
    kernel.run("%%ranks 2\n1")
    assert kernel.run(f"%%ranks 0,1\n{work}").stdout == "[0-1] 2.0\n"
    assert closed(kernel) == ""


def test_a_rank_that_keeps_others_waiting_is_told_of_in_its_cell(kernel):
    kernel.run("import nbstate.job.matching as m; m.LONELY_AFTER = 0.2")
    opened(kernel, trace=True)
    cell = pressed_once_told(
        kernel, "%%ranks\nif rank == 2: time.sleep(600)\ndist.barrier()", "has not come: rank 2"
    )
    assert "a collective that not all have come to within 0.2 s:\n" in cell.stdout
    assert cell.stdout.count("barrier, call 1") == 1
    assert kernel.run("%%ranks\ndist.barrier()\n'on'").stdout == "[0-2] 'on'\n"
    assert closed(kernel) == ""
