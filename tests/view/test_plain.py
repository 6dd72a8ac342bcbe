from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbstate.job.output import RankOutput, Text
from nbstate.view.page import make_page
from nbstate.view.plain import HEADLESS, NOTEBOOK, PlainView, SilentView
from nbstate.view.sheet import newest
from nbstate.wire import Display, mark
from tests.view.hand import HandJob, Paper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECOND = 1.0


def run(job: HandJob, paper: Paper) -> Paper:
    """Show a job that has already ended."""
    view = PlainView(job, paper)
    view.start()
    view.join()
    return paper


@pytest.fixture
def job(tmp_path: Path) -> Iterator[HandJob]:
    job = HandJob(tmp_path, 2)
    yield job
    job.end()


def test_lines_carry_their_rank_and_equal_ones_are_folded(job: HandJob) -> None:
    for rank in job.ranks:
        rank.says(f"hello\nI am {rank.index}\nbye\n")
    job.end()
    paper = run(job, Paper())
    assert paper.text() == (
        "[0-1] hello\n[0] I am 0\n[1] I am 1\n[0-1] bye\ntrain: done on 2 ranks in 1.2 s\n"
    )


def test_one_rank_needs_no_prefix(tmp_path: Path) -> None:
    job = HandJob(tmp_path, 1)
    job.ranks[0].says("hello\nno newline at the end")
    job.end()
    text = run(job, Paper()).text()
    assert text == "hello\nno newline at the end\ntrain: done on 1 rank in 1.2 s\n"


def test_a_bar_is_shown_at_its_last_state(job: HandJob) -> None:
    job.ranks[0].says("".join(f"\r{i:3}%|{'#' * (i // 10)}" for i in range(101)) + "\n", "stderr")
    job.end()
    assert run(job, Paper()).text("stderr") == "[0] 100%|##########\n"


def test_standard_error_stays_standard_error(job: HandJob) -> None:
    job.ranks[0].says("out\n")
    job.ranks[1].says("err\n", "stderr")
    job.end()
    paper = run(job, Paper())
    assert ("stderr", "[1] err\n") in paper.writes
    assert "err" not in paper.text("stdout")


def test_lines_appear_while_the_job_runs(job: HandJob) -> None:
    paper = Paper()
    view = PlainView(job, paper)
    for rank in job.ranks:
        rank.says("both\npartial")
    view.look()
    assert paper.text() == "[0-1] both\n"
    job.ranks[0].says(" line\n")
    job.ranks[1].says(" line\n")
    view.look()
    assert paper.text() == "[0-1] both\n[0-1] partial line\n"


def test_a_line_waits_a_little_for_the_other_ranks_and_no_longer(job: HandJob) -> None:
    paper = Paper()
    view = PlainView(job, paper)
    job.ranks[0].says("only I\n")
    rest = view.look()
    assert paper.text() == ""
    assert rest is not None
    assert rest <= NOTEBOOK.hold < SECOND


def test_a_line_below_nested_bars_is_shown_while_the_rank_is_busy(job: HandJob) -> None:
    paper = Paper()
    view = PlainView(job, paper)
    for step in range(3):
        job.ranks[0].says(f"\router {step}\ninner {step}\x1b[A")
    job.ranks[0].says("\n\nsaving...\n")
    while not paper.text():
        rest = view.look()
        assert paper.text() or rest is not None  # when nothing comes, it looks again by itself
    assert paper.text() == "[0] outer 2\n[0] inner 2\n[0] saving...\n"


def test_a_headless_run_reads_the_same_whichever_rank_was_faster(tmp_path: Path) -> None:
    def text(order: list[int], folder: Path) -> str:
        folder.mkdir()
        job = HandJob(folder, 2)
        paper = Paper(watched=False)
        view = PlainView(job, paper)
        for index in order:
            job.ranks[index].says("start\n")
            job.ranks[index].says(f"loss {index}\n")
            view.look()
        job.end()
        view.look()
        view.finish(make_page(job, timed=paper.watched))
        return paper.text()

    texts = [text(order, tmp_path / f"{i}") for i, order in enumerate([[0, 1], [1, 0]])]
    assert texts[0] == texts[1] == "[0-1] start\n[0] loss 0\n[1] loss 1\ntrain: done on 2 ranks\n"


def test_much_text_is_cut_to_head_and_tail_and_the_log_is_named(tmp_path: Path) -> None:
    job = HandJob(tmp_path, 1)
    paper = Paper(watched=False)
    view = PlainView(job, paper)
    for start in range(0, 10_000, 1000):
        job.ranks[0].says("".join(f"line {i}\n" for i in range(start, start + 1000)))
        view.look()
    job.end()
    view.look()
    view.finish(make_page(job, timed=paper.watched))
    lines = paper.text().splitlines()
    kept = HEADLESS.head or 0
    assert lines[0] == "line 0"
    assert lines[kept - 1] == f"line {kept - 1}"
    left_out = 10_000 - kept - HEADLESS.tail
    assert lines[kept] == f"... {left_out:,} lines only in {tmp_path / 'rank0.log'}"
    assert lines[kept + 1] == f"line {10_000 - HEADLESS.tail}"
    assert lines[-2] == "line 9999"
    assert len(job.ranks[0].output.whole().splitlines()) == 10_000


def test_a_flood_between_two_looks_costs_one_bounded_message(job: HandJob) -> None:
    paper = Paper()
    view = PlainView(job, paper)
    for rank in job.ranks:
        for start in range(0, 50_000, 1000):
            rank.says("".join(f"{rank.index}:{i}\n" for i in range(start, start + 1000)))
    view.look()
    job.end()
    view.look()
    assert len(paper.writes) <= 2
    lines = paper.text().splitlines()
    assert len(lines) <= NOTEBOOK.per_look + 2
    assert "[0] 0:49999" in lines
    told = [int(line.split()[2].replace(",", "")) for line in lines if "lines only in" in line]
    assert sum(told) + len(lines) - len(told) == 100_000


def test_a_drawing_stands_as_its_text_and_on_one_page_at_the_end(job: HandJob) -> None:
    output: RankOutput = job.ranks[1].output
    output.feed("stdout", b"before\n" + mark(1) + b"after\n")
    output.draw(Display(1, {"text/plain": "<Figure>", "image/png": "aGk="}, {}, {}))
    job.end()
    paper = run(job, Paper(watched=False))
    assert paper.text() == "[1] before\n[1] <Figure>\n[1] after\ntrain: done on 2 ranks\n"
    (bundle,) = paper.bundles
    assert "data:image/png;base64,aGk=" in bundle["text/html"]
    assert bundle["text/plain"] == (
        "train: done on 2 ranks\nrank 0: done\nrank 1: done, 1 drawing; last line: after"
    )


def test_without_drawings_there_is_no_page(job: HandJob) -> None:
    job.ranks[0].says("text\n")
    job.end()
    assert run(job, Paper()).bundles == []


def test_a_terminal_gets_everything_in_text(job: HandJob) -> None:
    job.ranks[0].output.feed("stdout", mark(1))
    job.ranks[0].output.draw(Display(1, {"text/plain": "   a\n0  1"}, {}, {}))
    job.end()
    paper = run(job, Paper(draws=False, bounded=False))
    assert paper.text().startswith("[0]    a\n[0] 0  1\n")
    assert paper.bundles == []


def test_notes_are_told_once(job: HandJob) -> None:
    paper = Paper()
    view = PlainView(job, paper)
    job.notes.append("the model was not written back")
    view.look()
    view.look()
    job.end()
    view.finish(make_page(job, timed=paper.watched))
    assert paper.text().count("the model was not written back\n") == 1


def test_a_log_that_could_not_be_written_is_said(job: HandJob) -> None:
    job.ranks[1].output.log_error = OSError(28, "No space left on device")
    job.end()
    paper = run(job, Paper())
    assert "incomplete: [Errno 28] No space left on device" in paper.text("stderr")


def test_silent_tells_only_notes(job: HandJob) -> None:
    job.ranks[0].says("text\n")
    job.notes.append("a note")
    job.end()
    paper = Paper()
    view = SilentView(job, paper)
    view.start()
    view.join()
    assert paper.writes == [("stdout", "a note\n")]


def test_a_broken_view_says_so_once_and_goes_on_plainly(job: HandJob) -> None:
    class BrokenBoard(SilentView):
        def look(self) -> float | None:
            raise RuntimeError("no such pane")

    job.ranks[0].says("text\n")
    job.end()
    paper = Paper()
    view = BrokenBoard(job, paper)
    view.start()
    view.join()
    assert paper.text("stderr") == (
        "nbstate: the view of train failed (RuntimeError: no such pane); "
        "the run goes on, as plain text\n"
    )
    assert "[0] text\n" in paper.text("stdout")
    assert job.listeners == []


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_the_newest_lines_and_the_count_of_the_older_ones(most: int) -> None:
    entries = [Text("stdout", "a\nb\n"), Text("stderr", "c\nd\ne\n"), Text("stdout", "f\ng")]
    kept, dropped = newest(entries, most)
    lines = "".join(e.text for e in kept if isinstance(e, Text)).splitlines()
    assert lines == list("abcdefg")[dropped:]
    assert dropped == max(0, 6 - most)
