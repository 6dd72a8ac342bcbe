from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbstate.job.output import KEPT_CHARACTERS, KEPT_DRAWINGS, Cursor, RankOutput, Text
from nbstate.wire import WIDGET_MIME, ClearOutput, Display, mark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def output(tmp_path: Path) -> Iterator[RankOutput]:
    output = RankOutput(tmp_path / "rank0.log")
    yield output
    output.finish()


def drawing(
    number: int, text: str, display_id: str | None = None, *, update: bool = False
) -> Display:
    transient = {} if display_id is None else {"display_id": display_id}
    return Display(number, {"text/plain": text}, {}, transient, update)


def told(output: RankOutput, cursor: Cursor | None = None) -> list[str]:
    piece = output.read(cursor or Cursor())
    return [
        entry.text
        if isinstance(entry, Text)
        else "cleared"
        if isinstance(entry, ClearOutput)
        else f"<{entry.data['text/plain']}>"
        for entry in piece.entries
    ]


@pytest.mark.parametrize("message_first", [True, False])
def test_a_drawing_stands_where_its_mark_is(output: RankOutput, *, message_first: bool) -> None:
    if message_first:
        output.draw(drawing(1, "figure"))
    output.feed("stdout", b"a" + mark(1) + b"b")
    if not message_first:
        assert told(output) == ["a"]
        output.draw(drawing(1, "figure"))
    assert told(output) == ["a", "<figure>", "b"]


def test_a_mark_torn_between_two_reads_is_no_text(output: RankOutput) -> None:
    written = b"a" + mark(17) + b"b"
    for cut in range(len(written)):
        output.feed("stdout", written[:cut])
        output.feed("stdout", written[cut:])
    output.draw(drawing(17, "figure"))
    assert "".join(t for t in told(output) if not t.startswith("<")) == "ab" * len(written)


def test_a_drawing_whose_mark_never_came_stands_at_the_end(output: RankOutput) -> None:
    output.draw(drawing(1, "figure"))
    output.feed("stdout", b"a")
    output.finish()
    assert told(output) == ["a", "<figure>"]


def test_a_read_larger_than_what_is_kept_leaves_its_end(output: RankOutput) -> None:
    line = b"x" * 99 + b"\n"
    count = 3 * KEPT_CHARACTERS // 100
    output.feed("stdout", line * count)
    piece = output.read(Cursor())
    text = "".join(entry.text for entry in piece.entries if isinstance(entry, Text))
    assert len(text) == KEPT_CHARACTERS
    assert piece.missed + text.count("\n") == count == output.lines
    assert output.whole() == (line * count).decode()


def test_a_line_after_a_read_as_large_as_what_is_kept_drops_little_of_it(
    output: RankOutput,
) -> None:
    output.feed("stdout", b"y" * (KEPT_CHARACTERS - 1) + b"\n")
    output.feed("stdout", b"after\n")
    kept = output.tail()
    assert kept.endswith("y\nafter\n")
    assert len(kept) > 0.9 * KEPT_CHARACTERS


def test_every_reader_is_told_what_it_missed(output: RankOutput) -> None:
    output.feed("stdout", b"first\n")
    early = output.read(Cursor()).cursor
    for _ in range(20):
        output.feed("stdout", b"y" * (KEPT_CHARACTERS // 10) + b"\n")
    for cursor, seen in ((Cursor(), 0), (early, 1)):
        piece = output.read(cursor)
        lines = sum(entry.text.count("\n") for entry in piece.entries if isinstance(entry, Text))
        assert seen + piece.missed + lines == 21
        assert output.read(piece.cursor).missed == 0


def test_an_update_reaches_who_has_read_the_drawing_and_who_has_not(output: RankOutput) -> None:
    output.feed("stdout", mark(1) + b"a")
    output.draw(drawing(1, "0%", "bar"))
    seen = output.read(Cursor()).cursor
    for percent in range(1, 10_000):
        output.draw(drawing(0, f"{percent}%", "bar", update=True))
    assert told(output, seen) == ["<9999%>"]
    assert told(output)[:2] == ["<9999%>", "a"]
    assert told(output, output.read(seen).cursor) == []


def test_an_update_that_overtakes_its_drawing_is_not_lost(output: RankOutput) -> None:
    output.draw(drawing(1, "0%", "bar"))
    output.draw(drawing(0, "50%", "bar", update=True))
    output.feed("stdout", mark(1))
    assert told(output)[0] == "<50%>"


def test_only_the_last_drawings_are_kept(output: RankOutput) -> None:
    for number in range(1, 100):
        output.feed("stdout", mark(number))
        output.draw(drawing(number, str(number)))
    assert told(output) == [f"<{n}>" for n in range(100 - KEPT_DRAWINGS, 100)]


def test_a_clearing_stands_in_its_place(output: RankOutput) -> None:
    output.feed("stdout", b"old" + mark(1) + b"new")
    output.draw(ClearOutput(1, wait=False))
    assert told(output) == ["old", "cleared", "new"]


def test_the_log_has_every_byte_and_is_private(output: RankOutput) -> None:
    output.feed("stdout", b"caf\xc3")
    output.feed("stderr", b"\xff\n")
    output.feed("stdout", b"\xa9\n")
    assert output.path.read_bytes() == b"caf\xc3\xff\n\xa9\n"
    assert output.path.stat().st_mode & 0o077 == 0
    assert output.tail("stdout") == "caf\xe9\n"
    assert output.tail("stderr") == "\ufffd\n"


def of_widget(number: int, model_id: str) -> Display:
    return Display(number, {WIDGET_MIME: {"model_id": model_id}, "text/plain": model_id}, {}, {})


def test_a_widget_that_was_closed_is_gone_from_the_text(output: RankOutput) -> None:
    output.feed("stdout", b"before" + mark(1) + b"between" + mark(2) + b"after")
    output.draw(of_widget(1, "a"))
    output.draw(of_widget(2, "b"))
    output.take_back("a")
    assert told(output) == ["before", "between", "<b>", "after"]


def test_a_widget_closed_before_its_place_is_known_holds_nothing_up(output: RankOutput) -> None:
    output.draw(of_widget(1, "a"))
    output.take_back("a")
    output.feed("stdout", mark(1) + b"after")
    assert told(output) == ["after"]


def test_widgets_that_were_closed_do_not_push_out_a_live_one(output: RankOutput) -> None:
    output.draw(of_widget(0, "live"))
    output.feed("stdout", mark(0))
    for number in range(1, 2 * KEPT_DRAWINGS):
        output.draw(of_widget(number, "short"))
        output.feed("stdout", mark(number))
        output.take_back("short")
    assert told(output) == ["<live>"]
