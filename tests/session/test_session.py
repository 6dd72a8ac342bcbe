"""Ranks that stay: what they know, what they are given, what they give back."""

from __future__ import annotations

import pytest

from nbstate.session.selection import select
from tests.session.conftest import SETUP


def test_ranks_know_what_the_kernel_knew_and_which_rank_they_are(two):
    cell = two.run("session.run(lambda: (rank, world_size, known_at_fork))")
    assert cell.result == "RankResults([(0, 2, 5), (1, 2, 5)])"


def test_variables_stay_between_cells(two):
    two.run("session.cell('kept = rank * 10', collect=False)")
    assert two.run("session['kept'], session.pull('kept + 1', ranks=1)").result == (
        "(RankResults([0, 10]), RankResults([11]))"
    )


def test_functions_of_later_cells_travel_with_what_they_call_and_use_the_ranks_variables(two):
    two.run("session.push(factor=3)")
    cell = two.run("""
        def helper(x): return x * factor
        class Net:
            def forward(self, x): return helper(x) + rank
        def train(x, *, more=0): return Net().forward(x) + more
        session.run(train, 2, more=100)
    """)
    assert cell.result == "RankResults([106, 107])"
    cell = two.run("""
        def helper(x): return -x
        [type(net) is Net for net in session.run(lambda: Net())], list(session.run(train, 2))
    """)
    assert cell.result == "([True, True], [-2, -1])", "a changed function travels at the next call"


def test_classes_of_ranks_and_of_later_cells_that_are_gone_here_still_arrive(two):
    two.run("""
        import gc
        class Later:
            n = 2
        session.push(later=Later())
        class Later: ...
        session.cell('''
        class Stats:
            n = 1
        stats = Stats()
        ''', collect=False)
    """)
    assert two.run("[stats.n for stats in session['stats']]").result == "[1, 1]"
    cell = two.run("""
        gc.collect()
        session.cell("Stats.n = 3")
        [found.n for found in (*session["stats"], *session["later"])]
    """)
    assert cell.error is None
    assert cell.result == "[3, 3, 2, 2]"


def test_an_exception_of_a_class_that_only_the_ranks_have_arrives(two):
    cell = two.run("""
        session.cell('''
        class NoLuckError(Exception):
            def why(self): return luck
        luck = 0
        ''', collect=False)
        try:
            session.cell("raise NoLuckError('bad')")
        except RankError as error:
            found = type(error.__cause__).__name__, str(error.__cause__)
        session.cell("luck = 7")
        found, session["NoLuckError().why()"]
    """)
    assert cell.error is None
    assert cell.result == "(('NoLuckError', 'bad'), RankResults([7, 7]))"


def test_a_name_that_only_the_kernel_has_is_explained(two):
    cell = two.run("""
        only_here = 1
        session.run(lambda: only_here)
    """)
    assert cell.error.evalue.startswith("ranks 0-1 of 2: NameError: name 'only_here'")
    assert "session.push(only_here=...)" in cell.error.evalue
    assert "Cell In[" in cell.error.evalue


def test_big_values_are_pushed_and_pulled_whole(two):
    cell = two.run("""
        big = torch.randn(300, 1000)
        session["big"] = big
        session.push(small=[1, (2, {"x": torch.ones(2)})])
        first = all(torch.equal(big, theirs) for theirs in session["big"])
        session.cell("big[0, 0] = rank + 1000")
        first, session["big[0, 0].item()"], session["small[1][1]['x'].sum().item()"]
    """)
    assert cell.result == "(True, RankResults([1000.0, 1001.0]), RankResults([2.0, 2.0]))"


def test_a_value_that_cannot_travel_is_named(two):
    cell = two.run("session.push(lock={'inner': threading.Lock()})")
    assert "lock['inner'] cannot travel" in cell.error.evalue
    cell = two.run("session.cell('hidden = [__import__(\"threading\").Lock()]'); session['hidden']")
    assert "result[0] cannot travel" in cell.error.evalue
    cell = two.run("session.run(print, {'inner': [threading.Lock()]})")
    assert cell.error.evalue.startswith("args[0]['inner'][0] cannot travel")
    cell = two.run("session.scatter('parts', [1, threading.Lock()])")
    assert cell.error.evalue.startswith("parts[1] cannot travel")


def test_scatter_and_gather(two):
    cell = two.run("""
        session.scatter("part", torch.arange(5))
        session.cell("part = part * 10")
        session["len(part)"], session.gather("part").tolist()
    """)
    assert cell.result == "(RankResults([3, 2]), [0, 10, 20, 30, 40])"


def test_sync_gives_one_ranks_value_to_all_and_modules_keep_their_identity(two):
    cell = two.run("""
        session.cell('''
        class Mine:
            def __init__(self): self.of = rank
        thing = Mine()
        model = before = torch.nn.Linear(2, 2)
        with torch.no_grad(): model.weight.fill_(rank)
        ''', collect=False)
        session.sync("thing", root=1)
        session.sync("model", root=-1)
        session["thing.of, type(thing) is Mine, model is before, model.weight.mean().item()"]
    """)
    assert cell.result == "RankResults([(1, True, True, 1.0), (1, True, True, 1.0)])"


def test_states_and_groups_stay(two):
    cell = two.run("""
        session.cell("state = PartialState(); t = torch.ones(1) + rank; dist.all_reduce(t)")
        session["t.item(), state.num_processes, dist.get_world_size()"]
    """)
    assert cell.result == "RankResults([(3.0, 2, 2), (3.0, 2, 2)])"


def test_refork_starts_from_the_kernel_as_it_is_now(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        before = [rank.pid for rank in session.ranks]
        session.cell("gone = 1", collect=False)
        new_here = "new"
        session.refork()
        pids = [rank.pid for rank in session.ranks]
        not set(before) & set(pids), session["new_here, 'gone' in globals()"]
    """)
    assert cell.result == "(True, RankResults([('new', False), ('new', False)]))"
    kernel.run("session.close()")


def test_refork_again_and_again_leaves_nothing_behind(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        import psutil
        def counted():
            kernel = psutil.Process()
            return kernel.num_fds(), kernel.num_threads(), len(kernel.children())
        session.refork()
        before = counted()
        for turn in range(8):
            session.cell("state = PartialState(); dist.barrier()")
            session.refork()
            assert list(session["turn"]) == [turn, turn]
        until = time.monotonic() + 60
        while any(now > then for now, then in zip(counted(), before)):
            # A thread is gone a moment after it has said that all is over.
            assert time.monotonic() < until, (before, counted())
            time.sleep(0.01)
    """)
    assert cell.error is None, cell.error
    kernel.run("session.close()")


def test_what_old_ranks_left_running_is_told(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        with Session(1, grace=0.2) as other:
            other.cell("threading.Thread(target=time.sleep, args=(600,), name='mine').start()")
            other.refork()
    """)
    assert "left running after it returned" in cell.stdout, cell.error
    kernel.run("session.close()")


def test_a_session_with_a_port_of_its_own_keeps_it(kernel):
    kernel.run(SETUP)
    cell = kernel.run("""
        import socket
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with Session(2, use_port=port) as other:
            ports = other["os.environ['MASTER_PORT']"]
            other.refork()
            print(set(ports) | set(other["os.environ['MASTER_PORT']"]) == {str(port)})
            other.cell("state = PartialState(); dist.barrier()")
    """)
    assert cell.stdout == "True\n", cell.error
    kernel.run("session.close()")


def test_a_session_closes_and_says_so(kernel):
    cell = kernel.run("""
        from nbstate import Session
        with Session(2) as session:
            pids = [rank.pid for rank in session.ranks]
        import psutil
        print(session, any(psutil.pid_exists(pid) for pid in pids))
        session.run(print)
    """)
    assert cell.stdout == "<session: closed, 2 CPU processes> False\n"
    assert cell.error.evalue == "this session is closed: make a new one with Session(...)"


def test_a_session_that_is_closed_in_the_middle_of_a_cell_says_so(kernel):
    cell = kernel.run("""
        import nbstate, os, threading, time
        def close_it():
            while not os.path.exists("up"):
                time.sleep(0.01)
            session.close()
        session = nbstate.Session(2)
        closer = threading.Thread(target=close_it)
        closer.start()
        try:
            session.cell("open('up', 'w').close(); time.sleep(600)")
        finally:
            closer.join()
    """)
    assert cell.error.evalue == "ranks 0-1 of 2: ended: its session was closed"


def test_a_session_that_nothing_refers_to_ends(kernel):
    cell = kernel.run(
        """
        import gc, nbstate, psutil
        %load_ext nbstate
        session = nbstate.Session(2)
        inspector = nbstate.inspect(session)
        first = [psutil.Process(rank.pid) for rank in session.ranks]
        session = nbstate.Session(2)
        print(psutil.wait_procs(first, timeout=60)[1])
        print(session.run(lambda: globals().pop("session") is not None and gc.collect() >= 0))
        print(session.run(lambda: rank))
        session.refork()
        print(inspector._over, session.run(lambda: rank))
        last = [psutil.Process(rank.pid) for rank in session.ranks]
        del session
        print(psutil.wait_procs(last, timeout=60)[1])
    """.replace("        ", "")
    )
    assert cell.error is None, cell.error
    assert cell.stdout.splitlines() == [
        "[]",
        "RankResults([True, True])",
        "RankResults([0, 1])",
        "True RankResults([0, 1])",
        "[]",
    ]
    told = kernel.run("%%ranks\n1").stderr
    assert "the last one ended when nothing referred to it any more" in told


def test_it_works_without_a_notebook(tmp_path):
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text("""
import nbstate
x = 3
def shifted(y): return x + y + rank
if __name__ == "__main__":
    with nbstate.Session(2) as session:
        print(list(session.run(shifted, 1)))
        session.cell("print('said'); rank + 0")
""")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["[4, 5]", "[0-1] said", "[0] 0", "[1] 1"], done.stderr


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("Session(0)", "num_processes=0: expected a whole number of at least 1"),
        ("Session(2, timeout=3)", "timeout=3: a session has no such option"),
        ("Session(2, veiw='plain')", "did you mean 'view'"),
        ("session.run(3)", "function=3: expected a function"),
        ("session.run(print, ranks=2)", "rank 2 of 2: there are ranks 0 to 1"),
        ("session.sync('x', root=5)", "rank 5 of 2"),
    ],
)
def test_wrong_arguments_are_told_before_anything_happens(two, call, told):
    assert told in two.run(call).error.evalue


@pytest.mark.parametrize(
    ("chosen", "ranks"),
    [
        ("all", [0, 1, 2, 3]),
        ("", [0, 1, 2, 3]),
        ("0", [0]),
        ("0,2", [0, 2]),
        ("0, 2", [0, 2]),
        ("1:", [1, 2, 3]),
        ("-1", [3]),
        ("main", [0]),
        ("last", [3]),
        ("::2", [0, 2]),
        (2, [2]),
        ([3, 1], [3, 1]),
    ],
)
def test_selections(chosen, ranks):
    assert select(chosen, 4) == ranks


@pytest.mark.parametrize("chosen", ["4", "x", "1:2:3:4", "7:", "0,,2", "0,", []])
def test_selections_that_name_no_rank(chosen):
    with pytest.raises(ValueError, match="rank"):
        select(chosen, 4)
