from __future__ import annotations

import pytest

from nbstate.view.terminal import Screen


def shown(text: str) -> list[str]:
    screen = Screen()
    screen.feed(text)
    return [line.text for line in screen.lines]


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        pytest.param("a\nb", ["a", "b"], id="lines"),
        pytest.param(" 10%\r 20%\r 30%", [" 30%"], id="bar"),
        pytest.param("abc\rX", ["Xbc"], id="overwritten from the left"),
        pytest.param("abc\r\x1b[KX", ["X"], id="erased to the right"),
        pytest.param("abc\x1b[2K\rX", ["X"], id="erased whole"),
        pytest.param("ab\bX", ["aX"], id="backspace"),
        pytest.param("a\x1b[3Cb", ["a   b"], id="cursor right"),
        pytest.param("abc\x1b[2GX", ["aXc"], id="cursor to a column"),
        pytest.param("a\nb\x1b[Ac", ["ac", "b"], id="cursor up"),
        pytest.param("a\x1b[Bb", ["a", " b"], id="cursor down"),
        pytest.param("\x1b[99Aa", ["a"], id="cannot leave the page"),
        pytest.param("\x1b]0;title\x07a\x1b(Bb\x1b[?25lc", ["abc"], id="what it does not show"),
        pytest.param("a\x00b\x07c\td", ["abc\td"], id="control characters"),
        pytest.param("one\r\ntwo\r\n", ["one", "two", ""], id="lines of Windows"),
    ],
)
def test_a_page_shows_what_a_terminal_would(written: str, lines: list[str]) -> None:
    assert shown(written) == lines


def test_nested_bars_stay_in_their_own_lines() -> None:
    screen = Screen()
    for outer in range(3):
        screen.feed(f"\router {outer}")
        for inner in range(3):
            screen.feed(f"\n\rinner {inner}\x1b[A")
    assert [line.text for line in screen.lines] == ["outer 2", "inner 2"]


def test_a_code_torn_between_two_reads_is_one_code() -> None:
    whole = "a\x1b[31mred\x1b[0m\x1b]0;title\x07b\x1b[38;2;1;2;3mc"
    for cut in range(len(whole)):
        screen = Screen()
        screen.feed(whole[:cut])
        screen.feed(whole[cut:])
        assert screen.lines[0].text == "aredbc"


@pytest.mark.parametrize(
    ("written", "page"),
    [
        ("\x1b[31mred\x1b[0m plain", '<span style="color:#e75c58">red</span> plain'),
        (
            "\x1b[1;4mx\x1b[22my",
            (
                '<span style="font-weight:bold;text-decoration:underline">x</span>'
                '<span style="text-decoration:underline">y</span>'
            ),
        ),
        ("\x1b[38;5;208mx", '<span style="color:rgb(255,135,0)">x</span>'),
        ("\x1b[48;2;1;2;3mx", '<span style="background:rgb(1,2,3)">x</span>'),
        ("\x1b[38;5mx\x1b[m", '<span style="color:rgb(0,0,0)">x</span>'),
        ("\x1b[7mx", '<span style="color:#fff;background:#555">x</span>'),
    ],
)
def test_colours_become_inline_styles(written: str, page: str) -> None:
    screen = Screen()
    screen.feed(written)
    assert screen.lines[0].html() == page


def test_text_is_escaped() -> None:
    screen = Screen()
    screen.feed("</pre><script>alert(1)</script>\x1b[1m<b>&")
    page = screen.lines[0].html()
    assert "<script" not in page
    assert "&lt;/pre&gt;&lt;script&gt;" in page
    assert page.endswith("&lt;b&gt;&amp;</span>")


def test_ansi_keeps_colours_and_nothing_else() -> None:
    screen = Screen()
    screen.feed("\x1b]0;t\x07a\x1b[31mb\x1b[2Gc\x1b[0m")
    assert screen.lines[0].ansi() == "a\x1b[31mc\x1b[0m"


def test_settled_lines_are_handed_out_once_and_bars_wait() -> None:
    screen = Screen()
    screen.feed("one\ntwo\n 10%")
    assert [line.text for line in screen.take_settled()] == ["one", "two"]
    screen.feed("\r 90%")
    assert screen.take_settled() == []
    screen.feed("\r100%\nthree")
    assert [line.text for line in screen.take_settled()] == ["100%"]
    assert [line.text for line in screen.take_all()] == ["three"]


def test_lines_under_a_cursor_that_moves_up_are_not_settled() -> None:
    screen = Screen()
    screen.feed("outer\ninner\x1b[A\r")
    screen.feed("\ninner 2\x1b[A\router 2\n")
    assert screen.take_settled() == []
    assert [line.text for line in screen.take_all()] == ["outer 2", "inner 2"]


def test_lines_below_bars_are_settled_once_they_are_more_than_the_bars() -> None:
    screen = Screen()
    for step in range(3):
        screen.feed(f"\router {step}\nmiddle {step}\n\rinner {step}\x1b[2A")
    assert screen.take_settled() == []
    screen.feed("\n\n\none\n")
    assert [line.text for line in screen.take_settled()] == ["outer 2", "middle 2"]
    screen.feed("two\n")
    settled = [line.text for line in screen.take_settled()]
    assert settled == ["inner 2", "one", "two"]
    screen.feed("three\n")
    assert [line.text for line in screen.take_settled()] == ["three"]


def test_an_endless_line_is_bounded() -> None:
    screen = Screen()
    for _ in range(100):
        screen.feed("x" * 10_000)
    assert len(screen.lines[0].text) == 4000
