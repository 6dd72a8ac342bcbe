"""Questions of ranks in a real kernel: one after the other, tagged, and never for ever."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.kernels import Kernel
from tests.view.starts import STARTS, launching

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import getpass, os, pathlib, pdb, time
old_getpass = getpass.getpass
from nbstate import launch, notebook_launcher
"""


@pytest.fixture(scope="module", params=STARTS)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel"), allow_stdin=True) as kernel:
        kernel.run(SETUP + launching(request.param))
        yield kernel


def test_ranks_in_the_debugger_leave_when_the_run_is_stopped(watched: Kernel) -> None:
    cell = watched.start("""
        def train():
            if os.environ["RANK"] == "1":
                breakpoint()
            time.sleep(600)
        job = launch(train, num_processes=2, grace=600)
        job.wait()
    """)
    watched.read_until(lambda: bool(cell.prompts))
    watched.interrupt()  # ends the waiting only
    watched.wait(cell)
    cell = watched.run("job.stop(); job.wait()")
    assert cell.error is not None
    assert cell.error.ename == "JobStoppedError", cell.error.evalue


@pytest.fixture
def headless(shared_kernel: Kernel) -> Kernel:
    shared_kernel.run(SETUP)
    return shared_kernel


def test_each_rank_gets_its_own_answer(watched: Kernel) -> None:
    cell = watched.run(
        """
        def train():
            return os.environ["RANK"], input("name? "), input("age? ")
        sorted(notebook_launcher(train, num_processes=2))
        """,
        answers=["first", "second", "third", "fourth"],
    )
    assert sorted(cell.prompts) == [f"rank {r} {q}? " for r in (0, 1) for q in ("age", "name")]
    given = dict(zip(cell.prompts, ["first", "second", "third", "fourth"], strict=True))
    assert cell.result == repr(
        [(str(r), given[f"rank {r} name? "], given[f"rank {r} age? "]) for r in (0, 1)]
    )


def test_one_rank_asks_without_a_tag(watched: Kernel) -> None:
    cell = watched.run(
        'notebook_launcher(lambda: input("name? "), num_processes=1, isolate=True)[0]',
        answers=["me"],
    )
    assert cell.prompts == ["name? "]
    assert cell.result == "'me'"


def test_a_password_is_asked_as_one(watched: Kernel) -> None:
    cell = watched.run(
        "notebook_launcher(lambda: getpass.getpass(), num_processes=1, isolate=True)[0]",
        answers=["secret"],
    )
    assert cell.prompts == ["Password: "]
    assert cell.result == "'secret'"


def test_the_debugger_stops_where_it_is_told_and_goes_on(watched: Kernel) -> None:
    cell = watched.run(
        """
        def train():
            x = 3
            if os.environ["RANK"] == "1":
                breakpoint()
            return x
        notebook_launcher(train, num_processes=2)
        """,
        answers=["p x + 40", "x = 9", "c"],
    )
    assert cell.prompts == ["rank 1 ipdb> "] * 3
    assert cell.result == "RankResults([3, 9])"
    assert "43" in cell.displays[0]["text/html"]


def test_quitting_the_debugger_ends_the_run(watched: Kernel) -> None:
    cell = watched.run(
        """
        def train():
            if os.environ["RANK"] == "1":
                breakpoint()
            time.sleep(600)
        notebook_launcher(train, num_processes=2)
        """,
        answers=["q"],
    )
    assert cell.error is not None
    assert cell.error.traceback.splitlines()[0].startswith("rank 1 of 2: ")
    assert "BdbQuit" in cell.error.traceback


def test_a_post_mortem_shows_the_failed_frame(watched: Kernel) -> None:
    cell = watched.run(
        """
        def train():
            try:
                secret = 41
                1 / 0
            except ZeroDivisionError as error:
                pdb.post_mortem(error.__traceback__)
        notebook_launcher(train, num_processes=1, isolate=True);
        """,
        answers=["p secret + 1", "q"],
    )
    assert "42" in cell.displays[0]["text/html"]


def test_other_ranks_go_on_while_one_asks(watched: Kernel) -> None:
    cell = watched.start(
        """
        def train():
            if os.environ["RANK"] == "0":
                return input("go on? ")
            print("rank 1 is through")
            return "through"
        job = launch(train, num_processes=2)
        while [rank.state for rank in job.ranks] != ["running", "done"]:
            time.sleep(0.01)
        print("rank 1 is done while rank 0 is", job.ranks[0].state)
        """,
        answers=[],
    )
    watched.read_until(lambda: bool(cell.prompts))
    watched.wait(cell)
    assert cell.stdout == "rank 1 is done while rank 0 is running\n"
    watched._client.input("yes")
    assert watched.run("job.wait()").result == "RankResults(['yes', 'through'])"


def test_an_interrupt_gives_up_an_open_question(watched: Kernel) -> None:
    cell = watched.start('notebook_launcher(lambda: input("x? "), num_processes=2)')
    watched.read_until(lambda: bool(cell.prompts))
    watched.interrupt()
    watched.wait(cell)
    assert cell.error is not None
    assert cell.error.ename == "KeyboardInterrupt"
    again = watched.run('input("still? ")', answers=["yes"])
    assert again.result == "'yes'"


def test_a_question_that_a_session_gave_up_makes_room_for_others(watched: Kernel) -> None:
    watched.run("%load_ext nbstate")
    watched.run("session = nbstate.Session(2, start_method=launch.keywords['start_method'])")
    cell = watched.start("%%ranks 0\ninput('first? ')")
    watched.read_until(lambda: bool(cell.prompts))
    watched.interrupt()
    watched.wait(cell)
    assert cell.error is not None
    assert "interrupted; the ranks keep their variables" in cell.error.evalue
    cell = watched.run("session.run(lambda: input('second? '), ranks=1)[0]", answers=["yes"])
    assert cell.prompts == ["rank 1 second? "]
    assert cell.result == "'yes'"
    watched.run("session.close()")
    assert watched.run('input("third? ")', answers=["no"]).result == "'no'"


def test_a_rank_that_goes_on_after_an_interrupt_asks_no_longer(watched: Kernel) -> None:
    cell = watched.start(
        """
        def train():
            answered = pathlib.Path("answered")
            try:
                input("now? ") if os.environ["RANK"] == "0" else time.sleep(600)
            except KeyboardInterrupt:
                pass
            if os.environ["RANK"] == "1":
                answer = input("instead? ")
                answered.touch()
                return answer
            while not answered.exists():
                time.sleep(0.01)
        job = launch(train, num_processes=2)
        """
    )
    watched.read_until(lambda: bool(cell.prompts))
    cell._answers.append("yes")
    assert watched.run("job.interrupt(); job.wait()").result == "RankResults([None, 'yes'])"
    assert cell.prompts == ["rank 0 now? ", "rank 1 instead? "]


def test_threads_of_a_rank_ask_one_after_the_other(watched: Kernel) -> None:
    cell = watched.run(
        """
        from concurrent.futures import ThreadPoolExecutor
        def train():
            with ThreadPoolExecutor(2) as threads:
                return list(threads.map(input, ["a? ", "b? "]))
        notebook_launcher(train, num_processes=1, isolate=True)[0]
        """,
        answers=["first", "second"],
    )
    given = dict(zip(cell.prompts, ["first", "second"], strict=True))
    assert cell.result == repr([given["a? "], given["b? "]])


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ('input("x? ")', "EOFError"),
        ("getpass.getpass()", "EOFError"),
        ("old_getpass('key? ')", "EOFError"),
        ("breakpoint()", "EOFError"),
        ("pdb.set_trace()", "EOFError"),
        ("pdb.post_mortem(failed)", "bdb.BdbQuit"),
    ],
)
@pytest.mark.parametrize("start_method", STARTS)
def test_where_nobody_answers_the_line_is_named(
    headless: Kernel, start_method: str, question: str, error: str
) -> None:
    cell = headless.run(f"""
        def train():
            try:
                1 / 0
            except ZeroDivisionError as error:
                failed = error.__traceback__
            {question}
            return "not asked"
        notebook_launcher(train, num_processes=2, start_method={start_method!r})
    """)
    assert cell.error is not None
    assert f"in train: {question}" in cell.error.traceback
    first = cell.error.traceback.splitlines()[0]
    assert re.match(rf"rank \d of 2: {error}: .*in train: .*nobody is here to", first)
