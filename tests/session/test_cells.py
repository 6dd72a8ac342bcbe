"""A cell in a rank behaves like a cell."""

from __future__ import annotations

import pytest

from tests.kernels import Kernel
from tests.session.conftest import SETUP, complete
from tests.view.models import WIDGET


def test_the_last_expression_shows_per_rank_and_equal_ones_fold(two):
    assert two.run("%%ranks\nprint('hello')\nrank * 2").stdout == "[0-1] hello\n[0] 0\n[1] 2\n"
    assert two.run("%%ranks\n_ + 1").stdout == "[0] 1\n[1] 3\n"
    assert two.run("%%ranks\n1 + 1").stdout == "[0-1] 2\n"
    assert two.run("%%ranks\n1 + 1;").stdout == ""
    assert two.run("%%ranks 1\nrank").stdout == "[1] 1\n"


def test_the_list_of_ranks_may_have_spaces(kernel):
    kernel.run(SETUP.replace("Session(2)", "Session(3)"))
    for line in ("0, 2", "0 ,2", "0 2"):
        assert kernel.run(f"%%ranks {line}\nrank").stdout == "[0] 0\n[2] 2\n"
    told = kernel.run("%%ranks 0,\nrank").stderr
    assert "ranks='0,': give 'all', 'main', 'last', a rank" in told
    kernel.run("session.close()")


def test_magics_shell_commands_await_and_help_work(two):
    cell = two.run(
        """
        %%ranks
        !echo from the shell
        import asyncio
        await asyncio.sleep(0)
        files = !echo captured
        print(list(files))
        known_at_fork?
    """.replace("        ", "")
    )
    assert cell.error is None
    assert "[0-1] from the shell\n" in cell.stdout
    assert "[0-1] ['captured']\n" in cell.stdout
    assert "Type:" in cell.stdout
    cell = two.run("%%ranks 0\n%%time\nx_timed = 1")
    assert "[0] Wall time:" in cell.stdout
    assert "x_timed" in two.run("%%ranks 0\n%who int").stdout


def test_rich_values_draw_and_equal_ones_fold(two):
    cell = two.run(
        "%%ranks\nfrom IPython.display import HTML, display\nprint('a')\nHTML('<b>x</b>')"
    )
    assert [display["text/html"] for display in cell.displays] == ["<b>x</b>"]
    assert cell.stdout == "[0-1] a\n[0-1]\n"
    cell = two.run("%%ranks\nHTML(f'<i>{rank}</i>')")
    assert [display["text/html"] for display in cell.displays] == ["<i>0</i>", "<i>1</i>"]
    cell = two.run("""%%ranks 0
%matplotlib inline
import matplotlib.pyplot as plt
plt.plot([1, 2]);""")
    assert "image/png" in cell.displays[0]


def test_a_failing_cell_is_one_error_with_the_cells_lines(two):
    two.run("later = 0")
    cell = two.run("%%ranks\nprint('before')\n1 / 0")
    assert cell.stdout == "[0-1] before\n"
    assert cell.error.ename == "CellError"
    assert cell.error.evalue.startswith("ranks 0-1 of 2: ZeroDivisionError: division by zero")
    assert "----> 3 1 / 0" in cell.error.traceback
    number = cell.contents("execute_input")[0]["execution_count"]
    named = f"Cell In[{number}], line 3", f"<ipython-input-{number}-"  # the latter by IPython 7
    assert any(name in cell.error.traceback for name in named)
    assert cell.status == "error", "so that Run All stops"
    two.run("%%ranks\nprint('goes on')")


def test_different_failures_stand_apart_and_values_of_the_others_are_kept(two):
    cell = two.run("""
        try:
            session.cell("if rank: raise KeyError('odd')\\n'fine'")
        except RankError as error:
            print(type(error).__mro__[1].__name__, error.rank, error.results)
            print(error.original(KeyError))
    """)
    assert "RankError 1 {0: 'fine'}\n'odd'\n" in cell.stdout
    cell = two.run("%%ranks\nraise ValueError(rank)")
    assert "rank 0 of 2: ValueError: 0" in cell.error.evalue
    assert "rank 1 of 2: ValueError: 1" in cell.error.evalue


def test_syntax_errors_and_exits_are_told(two):
    assert "SyntaxError" in two.run("%%ranks\nx = = 1").error.evalue
    cell = two.run("%%ranks\nimport sys\nsys.exit(3)")
    assert "SystemExit: 3\n\nthe cell ends here and the rank stays" in cell.error.evalue
    assert cell.stderr == ""
    assert two.run("%%ranks\nrank").stdout == "[0] 0\n[1] 1\n"


def test_values_are_collected_and_output_can_be_left_out(two):
    cell = two.run("%%ranks --out values --quiet\nprint('not shown')\nrank + 0.5")
    assert cell.stdout == ""
    assert two.run("values").result == "RankResults([0.5, 1.5])"


def test_what_ranks_say_between_cells_is_in_the_next_one(two):
    two.run("""%%ranks 0
def speak():
    while not os.path.exists("go"):
        time.sleep(0.01)
    print("between cells", flush=True)
    open("spoken", "w").close()
threading.Thread(target=speak).start()""")
    (two.cwd / "go").touch()
    two.read_until((two.cwd / "spoken").exists)
    assert two.run("%ranks rank").stdout == ""
    assert two.run("session.push(number=3); session['number']").stdout == ""
    assert two.run("%%ranks\nnumber").stdout == "[0] between cells\n[0-1] 3\n"
    assert two.run("%%ranks\nnumber").stdout == "[0-1] 3\n"


def test_times_of_the_ranks(two):
    cell = two.run("%%ranks --time\npass")
    assert cell.stdout.startswith("rank 0 ")
    assert "spread" in cell.stdout


def test_a_table_marks_what_differs(two):
    cell = two.run("%ranks rank")
    assert cell.result.splitlines() == ["rank  rank", "0     0", "1     1     differs"]
    cell = two.run("%ranks torch.full((2, 3), float(rank))")
    assert "float32[2, 3] on cpu, mean 1" in cell.result
    assert "<table>" in cell.displays[0]["text/html"]
    assert "idle" in two.run("%ranks --status").result


def test_with_no_session_nothing_runs_in_the_kernel(kernel):
    kernel.run("%load_ext nbstate\n%load_ext nbstate\n%autoranks on")
    cell = kernel.run("here = 1")
    assert cell.status == "error"
    assert "no session is open" in cell.stderr
    assert kernel.eval("'here' in globals()") is False


def test_autoranks_runs_every_cell_on_the_ranks_but_those_for_the_kernel(two):
    two.run("%autoranks on")
    try:
        assert two.run("only_in_ranks = rank\nonly_in_ranks").stdout == "[0] 0\n[1] 1\n"
        cell = two.run("%%kernel\n'only_in_ranks' in globals()")
        assert cell.result == "False"
        assert "Wall time" in two.run("%%time\nrank").stdout
        # What a widget's callback begins and, raising, does not end is no cell.
        two.run("%%kernel\nget_ipython().events.trigger('pre_execute')")
        assert two.run("rank").stdout == "[0] 0\n[1] 1\n"
    finally:
        two.run("%autoranks off")
    assert two.run("'only_in_ranks' in globals()").result == "False"


@pytest.mark.parametrize("cell", ["%%time\nhere = 1", "%time here = 1", "%%capture\nhere = 1"])
def test_magics_in_a_cell_for_the_kernel_run_there_too(two, cell):
    two.run("here = 0\n%autoranks on")
    try:
        two.run(f"%%kernel\n{cell}")
        assert two.run("%%kernel\nhere").result == "1"
        assert two.run("%%capture inside\nprint('captured in the ranks')").error is None
        assert two.run("print(inside.stdout)").stdout == "[0-1] captured in the ranks\n[0-1] \n"
    finally:
        two.run("%autoranks off")


def test_autoranks_goes_on_with_fresh_ranks_and_another_session(kernel):
    kernel.run(SETUP)
    kernel.run("%autoranks on")
    for fresh in ("session.refork()", "session.close(); session = Session(2)"):
        kernel.run(f"%%kernel\n{fresh}")
        assert kernel.run("print('said')\nrank").stdout == "[0-1] said\n[0] 0\n[1] 1\n"
        assert "Wall time" in kernel.run("%%time\nrank").stdout
    kernel.run("%%kernel\nsession.close()")


def test_a_rank_says_that_sessions_are_its_kernels(two):
    told = two.run("%%ranks 1\n%ranks rank").error.evalue
    assert "UsageError: this is rank 1 of 2: only its kernel has sessions" in told


def test_wrong_use_of_the_magics_is_explained(two):
    assert "unknown option --outt" in two.run("%%ranks --outt x\n1").stderr
    assert "rank 9 of 2" in two.run("%%ranks 9\n1").stderr
    assert "on or off" in two.run("%autoranks maybe").stderr


def test_names_that_live_in_ranks_are_completed(two):
    two.run("%%ranks\nmy_long_name_in_ranks = 1")
    assert "my_long_name_in_ranks" in complete(two, "%%ranks\nprint(my_long_na")
    assert "my_long_name_in_ranks" in complete(two, "%ranks my_long_na")
    assert "my_long_name_in_ranks" in complete(two, "%ranks 1 + my_long_na")
    assert "my_long_name_in_ranks" not in complete(two, "my_long_na")


def test_questions_are_asked_in_the_cell(tmp_path):
    with Kernel(tmp_path, allow_stdin=True) as kernel:
        kernel.run(SETUP)
        cell = kernel.run("%%ranks 1\nname = input('who? ')\nname", answers=["me"])
        assert cell.prompts == ["rank 1 who? "]
        assert "'me'" in cell.stdout
        kernel.run("session.close()")


def test_widgets_stay_alive_after_their_cell(tmp_path):
    with Kernel(tmp_path, allow_stdin=True) as kernel:
        kernel.run(SETUP)
        cell = kernel.run("%%ranks 0\nimport ipywidgets\nslider = ipywidgets.IntSlider(3)\nslider")
        (shown,) = cell.displays
        model = shown[WIDGET]["model_id"]
        opened = [content["comm_id"] for content in cell.contents("comm_open")]
        assert model in opened
        kernel.run("session.close()")


@pytest.mark.parametrize("view", ["plain", "silent"])
def test_views(kernel, view):
    kernel.run(
        f"%load_ext nbstate\nfrom nbstate import Session\nsession = Session(2, view={view!r})"
    )
    cell = kernel.run("%%ranks\nprint('x')")
    assert cell.stdout == ("[0-1] x\n" if view == "plain" else "")
    kernel.run("session.close()")


def test_a_long_cell_is_followed_on_a_board_and_leaves_what_a_quick_one_would(tmp_path):
    with Kernel(tmp_path, allow_stdin=True) as kernel:
        kernel.run(SETUP)
        cell = kernel.start("""%%ranks
print('one')
while not os.path.exists('go'):
    time.sleep(0.01)
rank""")
        kernel.read_until(lambda: any(WIDGET in shown for shown in cell.displays))
        (kernel.cwd / "go").touch()
        kernel.wait(cell)
        (shown,) = cell.displays
        assert shown["text/plain"] == "[0-1] one\n[0] 0\n[1] 1\n"
        assert "<pre" in shown["text/html"]
        assert (
            "no run has ended in this kernel yet" in kernel.run("nbstate.last_run()").error.evalue
        )
        kernel.run("session.close()")


def test_a_collective_before_there_is_a_group_says_what_makes_one(kernel):
    kernel.run(SETUP)
    advice = "no process group yet: PartialState() in a %%ranks cell makes it"
    for code in ("%%ranks\ndist.barrier()", "session.run(lambda: dist.barrier())"):
        cell = kernel.run(code)
        assert advice in cell.error.evalue
    cell = kernel.run("%%ranks\ndist.barrier()")
    assert "----> 2 dist.barrier()" in cell.error.traceback
    assert "distributed_c10d" not in cell.error.traceback
    kernel.run("session.close()")


def test_tracebacks_of_traced_ranks_have_no_line_of_nbstate(kernel):
    kernel.run(SETUP.replace("Session(2)", "Session(2, trace=True)"))
    kernel.run("%%ranks\nstate = PartialState()")
    cell = kernel.run("%%ranks\ndist.barrier() if rank else dist.all_reduce(torch.ones(2))")
    assert "the ranks call different collectives" in cell.error.evalue
    assert "----> 2 dist.barrier() if rank" in cell.error.traceback
    for ours in ("trace.py", "timing.py", "distributed_c10d"):
        assert ours not in cell.error.traceback
    cell = kernel.run("""%%ranks
try:
    dist.broadcast(torch.ones(1), src=rank)
except Exception as error:
    raise ValueError("mine") from error""")
    assert "ValueError: mine" in cell.error.evalue
    assert "in <module>: dist.broadcast(torch.ones(1), src=rank)" in cell.error.traceback
    assert "trace.py" not in cell.error.traceback
    kernel.run("session.close()")


def test_a_table_has_a_row_for_a_rank_where_the_expression_fails(two):
    two.run("%%ranks 0\nonly_on_one = 1")
    cell = two.run("%ranks only_on_one")
    assert cell.result.splitlines()[1:] == ["0     1", "1     not defined  differs"]
    cell = two.run("%ranks 1 // rank")
    assert "0     ZeroDivisionError: integer" in cell.result
    assert "the ranks have no nowhere" in two.run("%ranks nowhere").error.evalue


def test_equal_failures_on_two_lines_are_one_traceback_and_the_other_line(two):
    cell = two.run("%%ranks\nif rank == 0:\n    raise ValueError('no')\nraise ValueError('no')")
    lines = cell.error.traceback.splitlines()
    assert lines[0] == "ranks 0-1 of 2: ValueError: no"
    assert len([line for line in lines if line.startswith("---->")]) == 1
    assert ": the same at Cell In[" in lines[-1]
    assert lines[-1].endswith(", in <module>: raise ValueError('no')")
