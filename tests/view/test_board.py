"""The board as a page is told of it, in a real kernel with a front end that answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.kernels import Kernel
from tests.view.models import WIDGET, Models, click
from tests.view.starts import FORKED, STARTS, launching

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import os, time, pathlib
import nbstate
from nbstate import launch, notebook_launcher
gate = pathlib.Path("gate")
def wait_for_gate():
    while not gate.exists():
        time.sleep(0.01)
"""


@pytest.fixture(scope="module", params=STARTS)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    """A kernel with a person before it: cells may ask."""
    with Kernel(tmp_path_factory.mktemp("kernel"), allow_stdin=True) as kernel:
        kernel.run(SETUP + launching(request.param))
        yield kernel


@pytest.fixture(autouse=True)
def closed_gate(watched: Kernel) -> None:
    (watched.cwd / "gate").unlink(missing_ok=True)


def open_gate(kernel: Kernel) -> None:
    (kernel.cwd / "gate").touch()


@FORKED
def test_a_quick_run_leaves_only_its_page(watched: Kernel) -> None:
    cell = watched.run("""
        notebook_launcher(lambda: print("hello"), num_processes=2)
    """)
    (page,) = cell.displays
    assert "hello" in page["text/html"]
    assert page["text/plain"].startswith("<lambda>: done on 2 ranks in ")
    assert cell.contents("comm_open") == []
    assert cell.stdout == ""


def test_a_run_is_shown_live_and_replaced_by_its_page(watched: Kernel) -> None:
    cell = watched.start("""
        def train():
            rank = os.environ["RANK"]
            print("before", rank)
            wait_for_gate()
            print("after", rank)
        notebook_launcher(train, num_processes=2)
    """)

    def states() -> list[str]:
        models = Models(cell)
        return [rank["state"] for rank in models.states[models.board()]["status"]["ranks"]]

    watched.read_until(lambda: cell.displays and states() == ["running", "running"])
    for rank in (0, 1):
        watched.read_until(lambda rank=rank: Models(cell).text(rank) == f"before {rank}\n")
    assert WIDGET in cell.displays[0]
    said = cell.displays[0]["text/plain"]
    assert re.fullmatch("train: (starting|running) on 2 ranks", said)
    open_gate(watched)
    watched.wait(cell)
    (page,) = cell.displays
    assert page.keys() == {"text/html", "text/plain"}
    assert "after 0" in page["text/html"]
    models = Models(cell)
    assert models.text(1) == "before 1\nafter 1\n"
    assert models.closed == set(models.states)


def test_a_page_that_comes_late_begins_with_the_tail(watched: Kernel) -> None:
    cell = watched.start("""
        def train():
            print("early")
            wait_for_gate()
        notebook_launcher(train, num_processes=2)
    """)
    watched.read_until(lambda: cell.displays and Models(cell).states[Models(cell).board()]["tail"])
    models = Models(cell)
    tail = models.states[models.board()]["tail"]
    assert tail["n"] >= 1
    assert sorted(tail["c"]) == [[0, 0, "early\n"], [1, 0, "early\n"]]
    open_gate(watched)
    watched.wait(cell)


def test_a_flood_is_bounded_and_says_where_the_rest_is(watched: Kernel) -> None:
    cell = watched.start("""
        def train():
            for i in range(100_000):
                print("line", i, "x" * 60)
            print("last line")
            wait_for_gate()
        notebook_launcher(train, num_processes=2)
    """)
    watched.read_until(lambda: cell.displays and "last line" in Models(cell).text(0))
    open_gate(watched)
    watched.wait(cell)
    models = Models(cell)
    assert "lines only in /" in models.text(0)
    sizes = [len(m["c"][0][2]) for m in models.custom[models.board()] if m["op"] == "add"]
    assert max(sizes) < 64_000
    assert cell.displays[0]["text/html"].count("line 99") > 100
    assert "lines before these only in" in cell.displays[0]["text/html"]
    assert cell.stdout == ""


def test_a_background_job_keeps_to_its_own_cell(watched: Kernel) -> None:
    own = watched.run("""
        def train():
            wait_for_gate()
            print("from the ranks")
        job = launch(train, num_processes=2)
    """)
    assert WIDGET in own.displays[0]
    second = watched.run("job")
    assert second.displays[0][WIDGET] == own.displays[0][WIDGET]
    other = watched.start("""
        print("mine")
        gate.touch()
        job.wait()
    """)
    watched.wait(other)
    watched.read_until(lambda: WIDGET not in own.displays[0] and WIDGET not in second.displays[0])
    assert own.displays == second.displays
    assert "from the ranks" in own.displays[0]["text/html"]
    assert other.stdout == "mine\n"
    again = watched.run("nbstate.last_run()")
    assert again.displays[0]["text/html"] == own.displays[0]["text/html"]
    assert watched.run("job").displays[0] == own.displays[0]


def test_lines_of_a_busy_job_stay_whole_in_order_and_in_their_cell(watched: Kernel) -> None:
    own = watched.run("""
        def train():
            for i in range(500):
                print("rank", os.environ["RANK"], "line", i)
                time.sleep(0.001)
            wait_for_gate()
        job = launch(train, num_processes=2)
    """)
    others = [watched.run("job"), watched.run("print('mine')"), watched.run("time.sleep(0.3)")]
    # An older kernel says what belongs to a widget for the cell that runs at that moment.
    watched.read_until(lambda: all("line 499" in Models(own, *others).text(r) for r in (0, 1)))
    for rank in (0, 1):
        assert Models(own, *others).text(rank) == "".join(
            f"rank {rank} line {i}\n" for i in range(500)
        )
    assert [cell.stdout for cell in others] == ["", "mine\n", ""]
    open_gate(watched)
    watched.run("job.wait()")


def test_the_stop_button_ends_a_background_job(watched: Kernel) -> None:
    cell = watched.run("job = launch(wait_for_gate, num_processes=2)")
    board = Models(cell).board()
    click(watched, board, {"op": "hello"})
    answer = click(watched, board, {"op": "stop", "id": 7})
    watched.read_until(lambda: WIDGET not in cell.displays[0])
    models = Models(cell, answer)
    assert {"op": "ack", "id": 7} in models.custom[board]
    assert "wait_for_gate: stopped on 2 ranks" in cell.displays[0]["text/plain"]


def test_where_is_everyone_tells_the_lines(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            print("here")
            time.sleep(600)
        job = launch(train, num_processes=2)
    """)
    watched.read_until(lambda: all(Models(cell).text(rank) == "here\n" for rank in (0, 1)))
    board = Models(cell).board()
    answer = click(watched, board, {"op": "where", "id": 1})

    def said() -> list[str]:
        messages = Models(cell, answer).custom.get(board, [])
        return [m["text"] for m in messages if m["op"] == "said"]

    watched.read_until(lambda: bool(said()))
    assert "in train: time.sleep(600)" in said()[0]
    watched.run("job.stop()")
    watched.read_until(lambda: WIDGET not in cell.displays[0])


def test_without_an_answer_panes_of_html_show_the_text(watched: Kernel) -> None:
    cell = watched.start("""
        def train():
            print("<hello>")
            wait_for_gate()
        notebook_launcher(train, num_processes=2)
    """)

    def panes() -> list[str]:
        models = Models(cell)
        return [models.states[key]["value"] for key in models.named("HTMLModel")]

    watched.read_until(lambda: [pane for pane in panes() if "&lt;hello&gt;" in pane])
    assert len(panes()) == 2
    open_gate(watched)
    watched.wait(cell)
    assert cell.displays[0].keys() == {"text/html", "text/plain"}


def test_a_failure_is_on_the_page_and_raised(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            print("so far")
            raise ValueError("<boom>")
        notebook_launcher(train, num_processes=2)
    """)
    assert cell.error is not None
    (page,) = cell.displays
    assert "✗ failed" in page["text/html"]
    assert "&lt;boom&gt;" in page["text/html"]
    assert "so far" in page["text/html"]


def test_silent_shows_nothing(watched: Kernel) -> None:
    cell = watched.run("""
        notebook_launcher(lambda: print("hello"), num_processes=2, view="silent");
    """)
    assert (cell.stdout, cell.displays) == ("", [])


def test_captured_output_goes_to_who_captures(watched: Kernel) -> None:
    cell = watched.run("""
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as kept:
            notebook_launcher(lambda: print("hello"), num_processes=2)
        print(kept.getvalue().splitlines()[0])
    """)
    assert cell.stdout == "[0-1] hello\n"
