"""The page's small terminal and the kernel's are two programs that must agree."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import nbstate
from nbstate.view.terminal import Screen

if TYPE_CHECKING:
    from tests.browser.driver import Browser

SOURCE = Path(nbstate.__file__).parent / "view" / "screen.js"

PIECES = [
    *("a", "bc", "word ", "\t", "é", "█"),
    *("\n", "\r", "\b", "\r\n", "\x07", "\x00"),
    *("\x1b[A", "\x1b[2A", "\x1b[B", "\x1b[3C", "\x1b[5G", "\x1b[K", "\x1b[1K", "\x1b[2K"),
    *("\x1b[31m", "\x1b[1;4m", "\x1b[0m", "\x1b[m", "\x1b[22;39m", "\x1b[38;5;208m"),
    *(
        "\x1b[48;2;1;2;3m",
        "\x1b[97m",
        "\x1b[100m",
        "\x1b[38;5m",
        "\x1b[?25l",
        "\x1b]0;t\x07",
        "\x1b(B",
    ),
]

SHOW = """cases => {
    const run = new Function(%s + `
        return cases => cases.map(parts => {
            const screen = new Screen();
            const settled = [];
            for (const part of parts) {
                screen.feed(part);
                settled.push(...screen.takeSettled());
            }
            const show = line => [line.text, line.styles ? line.styles.map(Boolean) : null];
            return [settled.map(show), screen.takeAll().map(show)];
        });`)();
    return run(cases);
}"""


def of_the_kernel(parts: list[str]) -> list[list[tuple[str, list[bool] | None]]]:
    screen = Screen()
    settled = []
    for part in parts:
        screen.feed(part)
        settled += screen.take_settled()
    return [
        [
            (line.text, None if line.styles is None else [bool(s.css()) for s in line.styles])
            for line in lines
        ]
        for lines in (settled, screen.take_all())
    ]


def test_both_terminals_show_the_same(browser: Browser) -> None:
    chance = random.Random(5)
    cases = [
        [
            "".join(chance.choices(PIECES, k=chance.randrange(12)))
            for _ in range(chance.randrange(1, 5))
        ]
        for _ in range(2000)
    ]
    page = browser.blank()
    shown = page.evaluate(SHOW % json.dumps(SOURCE.read_text()), cases)
    page.close()
    for parts, (settled, rest) in zip(cases, shown, strict=True):
        of_the_page = [[(text, styles) for text, styles in lines] for lines in (settled, rest)]
        assert of_the_page == of_the_kernel(parts), parts
