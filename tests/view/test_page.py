from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from nbstate.view.page import duration, make_page
from nbstate.wire import ClearOutput, Display, mark
from tests.view.hand import HandJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Reader(HTMLParser):
    """What a browser would make of a page: its tags, and its visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.images: list[str] = []
        self.open = 0
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += tag == "details" and ("open", None) in attrs
        self.images += [value or "" for name, value in attrs if (tag, name) == ("img", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def job(tmp_path: Path) -> Iterator[HandJob]:
    job = HandJob(tmp_path, 2)
    yield job
    job.end()


def test_a_page_tells_the_run_and_each_rank(job: HandJob) -> None:
    job.ranks[0].says("loss 0.5\n")
    job.ranks[1].says("loss 0.6\n")
    job.notes.append("the model was not written back")
    job.end()
    page = make_page(job)
    text = Reader(page.html).text
    assert "train ✓ done 2 CPU processes, gloo · 1.2 s" in text
    assert "the model was not written back" in text
    assert "rank 1 ✓ done 1 line" in text
    assert "loss 0.6" in text
    assert str(job.log_dir / "rank1.log") in text
    assert page.plain == (
        "train: done on 2 ranks in 1.2 s\nthe model was not written back\n"
        "rank 0: done; last line: loss 0.5\nrank 1: done; last line: loss 0.6"
    )
    assert repr(page) == page.plain
    assert page._repr_mimebundle_() == {"text/html": page.html, "text/plain": page.plain}


def test_what_a_rank_prints_is_shown_as_characters(job: HandJob) -> None:
    printed = "<script>alert(1)</script></pre></div><img src=x onerror=alert(1)>"
    job.ranks[0].says(printed + "\n")
    job.name = "<b>lambda</b>"
    job.notes.append("<i>note</i>")
    job.error = RuntimeError("<u>boom</u>")
    job.end("failed")
    reader = Reader(make_page(job).html)
    assert {"script", "img", "i", "u"}.isdisjoint(reader.tags)
    assert printed in reader.text
    assert "<b>lambda</b>" in reader.text


def test_equal_runs_leave_equal_pages(tmp_path: Path) -> None:
    pages = []
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        job = HandJob(tmp_path / str(i), 2, elapsed=i + 1.0)
        job.ranks[0].says("the same\n")
        job.end()
        pages.append(make_page(job, timed=False))
    assert pages[0] == pages[1]


def test_text_and_drawings_stand_in_the_order_of_the_program(job: HandJob) -> None:
    output = job.ranks[0].output
    output.feed("stdout", b"one\n" + mark(1) + b"two" + mark(2) + b"\nthree\n")
    output.draw(Display(1, {"image/png": "UE5H\n", "text/plain": "<Figure>"}, {}, {}))
    output.draw(Display(2, {"text/html": "<table><tr><td>cell</td></tr></table>"}, {}, {}))
    job.end()
    page = make_page(job)
    html = page.html
    places = [html.index(x) for x in ("one", "base64,UE5H", "two", "<td>cell", "three")]
    assert places == sorted(places)
    assert page.drawings == 2


def test_an_update_changes_the_drawing_in_its_place(job: HandJob) -> None:
    output = job.ranks[0].output
    output.feed("stdout", mark(1) + b"text\n" + mark(2))
    output.draw(Display(1, {"text/plain": "0%"}, {}, {"display_id": "bar"}))
    output.draw(Display(2, {"text/plain": "100%"}, {}, {"display_id": "bar"}, update=True))
    job.end()
    page = make_page(job)
    assert "0%</pre>" in page.html
    assert ">0%<" not in page.html
    assert page.html.index("100%") < page.html.index("text")
    assert "rank 0: done, 1 drawing" in page.plain


@pytest.mark.parametrize("wait", [True, False])
def test_cleared_output_is_gone(job: HandJob, *, wait: bool) -> None:
    output = job.ranks[0].output
    output.feed("stdout", b"old\n" + mark(1) + b"new\n")
    output.draw(ClearOutput(1, wait=wait))
    job.end()
    text = Reader(make_page(job).html).text
    assert "new" in text
    assert "old" not in text


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        ({"image/jpeg": "aGk="}, "data:image/jpeg;base64,aGk="),
        ({"image/svg+xml": "<svg/>"}, "data:image/svg+xml;base64,PHN2Zy8+"),
        ({"image/svg+xml": ["<svg>", "</svg>"]}, "data:image/svg+xml;base64,PHN2Zz48L3N2Zz4="),
        ({"text/markdown": "# <b>"}, "# &lt;b&gt;"),
        ({"text/latex": "$x<1$"}, "$x&lt;1$"),
        ({"text/plain": "<Axes>"}, "&lt;Axes&gt;"),
        ({"text/plain": "\x1b[31mred\x1b[0m"}, '<span style="color:#e75c58">red</span>'),
        ({"application/x-odd+json": {}}, "a drawing of type application/x-odd+json"),
    ],
)
def test_every_kind_of_drawing_has_a_static_form(
    job: HandJob, data: dict[str, object], seen: str
) -> None:
    job.ranks[0].output.feed("stdout", mark(1))
    job.ranks[0].output.draw(Display(1, data, {}, {}))
    job.end()
    assert seen in make_page(job).html


@pytest.mark.parametrize(
    ("size", "seen"),
    [
        ({"width": 320, "height": 240}, ' width="320" style'),
        ({"height": "50%"}, ' height="50%" style'),
        ({}, 'alt="drawing" style'),
    ],
)
def test_a_picture_has_the_size_that_it_was_given(
    job: HandJob, size: dict[str, object], seen: str
) -> None:
    shown = {"display_id": "figure"}
    output = job.ranks[0].output
    output.feed("stdout", mark(1))
    output.draw(Display(1, {"image/png": "UE5H"}, {"image/png": {"width": 9}}, shown))
    output.draw(Display(0, {"image/png": "UE5H"}, {"image/png": size}, shown, update=True))
    job.end()
    assert seen in make_page(job).html


def test_only_the_tail_is_kept_and_the_page_says_where_the_rest_is(job: HandJob) -> None:
    job.ranks[0].says("".join(f"line {i}\n" for i in range(5000)))
    job.end()
    text = Reader(make_page(job, timed=False).html).text
    assert "line 4999" in text
    assert len(re.findall(r"line \d+", text)) == 200
    assert f"... 4,800 lines before these only in {job.log_dir / 'rank0.log'}" in text


def test_of_many_ranks_the_first_and_the_failed_ones_stand_open(tmp_path: Path) -> None:
    job = HandJob(tmp_path, 8)
    for rank in job.ranks:
        rank.says("text\n")
    job.ranks[5].state, job.ranks[5].exitcode = "failed", 3
    job.error = RuntimeError("rank 5 of 8: ValueError: boom")
    job.end("stopped")
    reader = Reader(make_page(job).html)
    assert reader.open == 2
    assert "rank 5 of 8: ValueError: boom" in reader.text
    assert "exit code 3" in reader.text


def test_colours_are_inline_and_a_bar_stands_at_its_last_state(job: HandJob) -> None:
    job.ranks[0].says("\x1b[32mgreen\x1b[0m\n 10%\r100%")
    job.end()
    html = make_page(job).html
    assert '<span style="color:#00a250">green</span>' in html
    assert "100%" in html
    assert " 10%" not in html


def test_a_bar_on_stderr_is_not_torn_by_prints(job: HandJob) -> None:
    rank = job.ranks[0]
    rank.says("\r 10%", "stderr")
    rank.says("epoch 1\n")
    rank.says("\r 20%", "stderr")
    rank.says("epoch 2\n")
    job.end()
    assert "epoch 1\nepoch 2\n 20%" in Reader(make_page(job).html).text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (7384, "2 h 3 min")],
)
def test_duration(seconds: float, said: str) -> None:
    assert duration(seconds) == said
