"""Interrupts keep the session; a dead rank is named and the others stay."""

from __future__ import annotations

import signal

import pytest

from tests.session.conftest import SETUP


def pressed(kernel, code):
    """Run a cell whose ranks say 'up', press the stop button when they have."""
    cell = kernel.start(code)
    kernel.read_until(lambda: "up" in cell.stdout)
    kernel.interrupt()
    return kernel.wait(cell)


@pytest.mark.parametrize(
    "work",
    [
        "time.sleep(600)",
        "while True: pass",
        "dist.all_reduce(torch.ones(1)) if rank == 0 else time.sleep(600)",
        "dist.recv(torch.ones(1), 1 - rank)",
        "PartialState().wait_for_everyone() if rank == 0 else time.sleep(600)",
    ],
)
def test_an_interrupt_keeps_ranks_and_variables(two, work):
    two.run("%%ranks --quiet\nstate = PartialState()\nkept = rank + 100\ndist.barrier()")
    pids = two.eval("[rank.pid for rank in session.ranks]")
    cell = pressed(two, f"%%ranks\nprint('up')\n{work}")
    assert "interrupted; the ranks keep their variables" in cell.error.evalue
    cell = two.run("%%ranks\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item(), kept")
    assert cell.stdout == "[0] (2.0, 100)\n[1] (2.0, 101)\n"
    assert two.eval("[rank.pid for rank in session.ranks]") == pids


def test_a_rank_that_waits_for_one_that_failed_is_freed(two):
    two.run("%%ranks --quiet\nstate = PartialState()")
    cell = two.run("%%ranks\nif rank == 1: raise ValueError('x')\ndist.barrier()")
    assert cell.error.evalue.startswith("rank 1 of 2: ValueError: x")
    assert "rank 0: lost its peer in barrier (Cell In[" in cell.error.evalue
    assert (
        two.run("%%ranks\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()").stdout == "[0-1] 2.0\n"
    )


@pytest.mark.parametrize("work", ["dist.all_reduce(torch.ones(3))", "loss.backward()"])
def test_traced_ranks_that_were_out_of_step_are_compared_anew(kernel, work):
    kernel.run(SETUP.replace("Session(2)", "Session(2, trace=True)"))
    model = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
loss = model(torch.ones(1, 2)).sum()
"""
    in_step = f"%%ranks\n{model}\nloss.backward()\nloss = model(torch.ones(1, 2)).sum()\nrank"
    kernel.run(f"%%ranks --quiet\nstate = PartialState()\n{model}")
    cell = kernel.run(f"%%ranks\nif rank == 1: raise ValueError('x')\n{work}")
    assert cell.error.evalue.startswith("rank 1 of 2: ValueError: x")
    cell = kernel.run(in_step)
    assert cell.stdout == "[0] 0\n[1] 1\n", cell.error
    cell = pressed(kernel, f"%%ranks\nprint('up')\nif rank == 1: time.sleep(600)\n{work}")
    assert "interrupted; the ranks keep their variables" in cell.error.evalue
    cell = kernel.run(in_step)
    assert cell.stdout == "[0] 0\n[1] 1\n", cell.error
    kernel.run("session.close()")


@pytest.mark.parametrize("makes", ["PartialState()", "dist.init_process_group('gloo')"])
def test_a_rank_that_waits_in_the_store_is_freed_without_torchs_own_stacks(kernel, makes):
    kernel.run(SETUP)
    cell = kernel.run(f"%%ranks\nif rank == 1: raise ValueError('x')\n{makes}")
    assert "rank 0: lost its peer in init_process_group (Cell In[" in cell.error.evalue
    assert cell.stderr == ""
    cell = kernel.run(f"%%ranks\n{makes};\ndist.get_world_size()")
    assert cell.stdout == "[0-1] 2\n"
    kernel.run("session.close()")


def test_a_group_that_is_in_step_is_left_alone(two):
    cell = two.run("""
        session.cell("state = PartialState(); dist.barrier(); group = dist.group.WORLD")
        try:
            session.cell("1 / 0")
        except RankError:
            pass
        session["dist.group.WORLD is group"]
    """)
    assert cell.result == "RankResults([True, True])"


def test_a_swallowed_interrupt_is_no_error(two):
    cell = pressed(
        two,
        """%%ranks
try:
    print('up')
    time.sleep(600)
except KeyboardInterrupt:
    print('ok')""",
    )
    assert cell.error is None
    assert cell.stdout == "[0-1] up\n[0-1] ok\n"


def test_a_second_press_ends_only_the_stuck_and_says_whose_state_is_lost(kernel):
    kernel.run("%load_ext nbstate\nimport nbstate, signal, time\nsession = nbstate.Session(2)")
    cell = kernel.start("""%%ranks
kept = 7
if rank:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print('up')
try:
    time.sleep(600)
finally:
    open('interrupted', 'w').close()""")
    kernel.read_until(lambda: "up" in cell.stdout)
    kernel.interrupt()
    interrupted = kernel.cwd / "interrupted"
    kernel.read_until(interrupted.exists)
    kernel.interrupt()
    kernel.wait(cell)
    assert "the state of rank 1 is lost: session.refork() heals" in cell.error.evalue
    assert kernel.run("%%ranks 0\nkept").stdout == "[0] 7\n"
    assert kernel.run("session.refork(); session.run(lambda: rank)").result == "RankResults([0, 1])"
    kernel.run("session.close()")


def test_an_interrupt_of_what_has_not_reached_the_ranks_leaves_them_alone(two):
    two.run("%%ranks --quiet\nstate = PartialState()\nkept = rank")
    two.run("""
        class Slow:
            def __reduce__(self):
                threads = threading.active_count()
                open('packing', 'w').close()
                while not session.doing.interrupted:
                    time.sleep(0.01)
                open('interrupted', 'w').close()
                while not os.path.exists('twice'):
                    time.sleep(0.01)
                while threading.active_count() > threads:  # who would end ranks, or cut them off
                    time.sleep(0.01)
                return int, (7,)
        pids = [rank.pid for rank in session.ranks]
        session.cell("group = dist.group.WORLD", collect=False)
    """)
    cell = two.start("session.push(never=Slow())")
    for name in ("packing", "interrupted"):
        two.read_until((two.cwd / name).exists)
        two.interrupt()
    (two.cwd / "twice").touch()
    two.wait(cell)
    assert cell.error.ename == "CellInterrupt"
    assert "interrupted; the ranks keep their variables" in cell.error.evalue
    assert two.eval("[rank.pid for rank in session.ranks] == pids")
    cell = two.run("%%ranks\n'never' in globals(), kept, dist.group.WORLD is group")
    assert cell.stdout == "[0] (False, 0, True)\n[1] (False, 1, True)\n"


def test_a_rank_shows_lines_of_cells_that_came_while_it_was_asked_nothing(two):
    two.run("""
        def fail():
            assert rank == 1, "here"
        session.run(lambda: 0, ranks=[1])
    """)
    cell = two.run("session.run(fail)")
    assert 'line 2, in fail\n    assert rank == 1, "here"' in cell.error.evalue
    cell = two.run("""
        def fail_too():
            assert rank == 1, "there"
        session.run(print, threading.Lock())
    """)
    assert "cannot travel" in cell.error.evalue
    cell = two.run("session.run(fail_too)")
    assert 'line 2, in fail_too\n    assert rank == 1, "there"' in cell.error.evalue


def test_a_dead_rank_is_named_with_its_last_words_and_the_others_stay(kernel):
    kernel.run("%load_ext nbstate\nimport nbstate, os\nsession = nbstate.Session(2)")
    kernel.run("%%ranks\nkept = rank")
    cell = kernel.run(
        "%%ranks\nif rank == 1:\n    print('goodbye')\n    os.kill(os.getpid(), 9)\n'fine'"
    )
    assert cell.error.evalue.startswith("rank 1 of 2: killed by SIGKILL")
    assert "its last words:\n  goodbye" in cell.error.evalue
    assert "rank 0: done" in cell.error.evalue
    cell = kernel.run("%%ranks\n1")
    assert "rank 1: killed by SIGKILL. session.refork() starts fresh ranks" in cell.error.evalue
    assert kernel.run("session").result == "<session: idle, 2 CPU processes, rank 1 gone>"
    assert "killed by SIGKILL" in kernel.run("%ranks --status").result
    assert kernel.run("%%ranks 0\nkept").stdout == "[0] 0\n"
    assert kernel.run("session.refork(); session.run(lambda: rank)").result == "RankResults([0, 1])"
    kernel.run("session.close()")


def test_an_interrupt_of_a_start_is_not_waited_out(kernel):
    kernel.run("import nbstate, os\nlist(nbstate.notebook_launcher(int, num_processes=2))")
    kernel.run("ballast = bytearray(os.urandom(1 << 20)) * 500  # a fork takes its time")
    cell = kernel.start("session = nbstate.Session(8, grace=600)")
    while not kernel.left_running():
        pass
    kernel.signal(signal.SIGINT)
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    assert kernel.left_running() == []


def test_a_session_that_breaks_down_says_so(kernel):
    kernel.run("import nbstate, threading, time\nsession = nbstate.Session(2)")
    kernel.run("""
        def destroy():
            while "up" not in session.ranks[1].stdout:
                time.sleep(0.01)
            session._team.job.loop.ask(lambda: 1 / 0)
        threading.Thread(target=destroy).start()
    """)
    cell = kernel.run("session.run(lambda: [print('up', flush=True), time.sleep(600)])")
    assert cell.error.evalue.startswith("this session has broken down, and its ranks are gone")
    assert "ZeroDivisionError" in cell.error.traceback
    assert kernel.left_running() == []
    assert "'nbstate-view'" not in kernel.run("[t.name for t in threading.enumerate()]").result
    cell = kernel.run("session.refork(); session.run(lambda: rank)")
    assert cell.result == "RankResults([0, 1])"


def test_ranks_go_with_their_kernel(kernel):
    kernel.run("import nbstate\nsession = nbstate.Session(2)")
    family = kernel.children()
    kernel.kill()
    import psutil

    assert psutil.wait_procs(family, timeout=5)[1] == []
