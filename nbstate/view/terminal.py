"""The small part of a terminal that training output needs, as styled lines.

Understood: line feed, carriage return, backspace, cursor up, down, right and to a column, erase in
line, and colours (16, 256 and true). Everything else is dropped without a trace. That covers bars
(nested ones move the cursor up), rich and IPython's tracebacks.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# fmt: off
PALETTE = (
    "#3e424d", "#e75c58", "#00a250", "#ddb62b", "#208ffb", "#d160c4", "#60c6c8", "#c5c1b4",
    "#282c36", "#b22b31", "#007427", "#b27d12", "#0065ca", "#a03196", "#258f8f", "#a1a6b2",
)
# fmt: on
"""The sixteen named colours; those of Jupyter, readable on a light and on a dark page."""

LONGEST_LINE = 4000
"""Characters of a line that are shown; the log has the rest."""

_CONTROL = re.compile(
    r"\x1b\[([0-9;?]*)([@-~])"  # a control sequence
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title or a link
    r"|\x1b[()][A-Z0-9]|\x1b.|[\r\n\b]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]",
    re.DOTALL,
)
_SWITCHES = {1: "bold", 2: "faint", 3: "italic", 4: "underline", 7: "inverse"}
_UNFINISHED = re.compile(r"\x1b(\[[0-9;?]{0,64}|\][^\x07\x1b]{0,256})?\Z")


@dataclass(frozen=True, slots=True)
class Style:
    """How characters look; colours are the parameters of their escape code, such as '31'."""

    bold: bool = False
    faint: bool = False
    italic: bool = False
    underline: bool = False
    inverse: bool = False
    colour: str = ""
    background: str = ""

    def having(self, name: str, value: bool | str) -> Style:
        """Return the same style with one attribute changed."""
        changed: dict[str, Any] = {name: value}
        return replace(self, **changed)

    def css(self) -> str:
        """Return the style as CSS declarations."""
        colour, background = _css_colour(self.colour), _css_colour(self.background)
        if self.inverse:
            colour, background = background or "#fff", colour or "#555"
        said = [
            ("font-weight:bold", self.bold),
            ("opacity:.7", self.faint),
            ("font-style:italic", self.italic),
            ("text-decoration:underline", self.underline),
            (f"color:{colour}", colour),
            (f"background:{background}", background),
        ]
        return ";".join(text for text, on in said if on)

    def codes(self) -> str:
        """Return the escape code that switches this style on."""
        marks = (self.bold, self.faint, self.italic, self.underline, self.inverse)
        said = [n for n, on in zip("12347", marks, strict=True) if on]
        said += [c for c in (self.colour, self.background) if c]
        return f"\x1b[{';'.join(said)}m" if said else ""


PLAIN = Style()


@dataclass(slots=True)
class Line:
    """A line: its characters and, where any is styled, one style for each."""

    text: str = ""
    styles: list[Style] | None = None

    def runs(self) -> Iterator[tuple[str, Style]]:
        """Yield the stretches of equal style."""
        if self.styles is None:
            if self.text:
                yield self.text, PLAIN
            return
        start = 0
        for at in range(1, len(self.text) + 1):
            if at == len(self.text) or self.styles[at] != self.styles[start]:
                yield self.text[start:at], self.styles[start]
                start = at

    def html(self) -> str:
        """Return the line as HTML, every character of it escaped."""
        return "".join(
            f'<span style="{style.css()}">{html.escape(text)}</span>'
            if style != PLAIN
            else html.escape(text)
            for text, style in self.runs()
        )

    def ansi(self) -> str:
        """Return the line with the escape codes of its styles, and none besides."""
        return "".join(
            f"{style.codes()}{text}\x1b[0m" if style != PLAIN else text
            for text, style in self.runs()
        )


@dataclass
class Screen:
    """The lines that a stream of text leaves on an endless page.

    `take_settled` hands out, once each, the lines that nothing will change any more. `reach` is how
    far above the last line the cursor has been, and may come again: bars that move it up draw their
    lines anew all the time. `begun` lines have been added since it moved up: once there are more
    than it reaches, the bars are over.
    """

    lines: list[Line] = field(default_factory=lambda: [Line()])
    row: int = 0
    column: int = 0
    style: Style = PLAIN
    reach: int = 0
    begun: int = 0
    _held: str = ""

    def feed(self, text: str) -> None:
        """Take text as it was written."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished else ""
        end = unfinished.start() if unfinished else len(text)
        at = 0
        for control in _CONTROL.finditer(text, 0, end):
            self._put(text[at : control.start()])
            at = control.end()
            self._obey(control)
        self._put(text[at:end])

    def take_settled(self) -> list[Line]:
        """Remove and return the lines above the cursor that it will not come back to."""
        settled = max(0, min(self.row, len(self.lines) - 1 - self.reach))
        taken = self.lines[:settled]
        del self.lines[:settled]
        self.row -= settled
        return taken

    @property
    def may_be_over(self) -> bool:
        """Whether a line was ended below bars; as long as they move, the cursor rests in one."""
        below = self.row == len(self.lines) - 1 and not self.lines[self.row].text
        return self.reach > 0 and self.begun > 0 and below

    def take_all(self) -> list[Line]:
        """Remove and return every line, the unfinished last one too unless it is empty."""
        taken = self.lines
        self.lines, self.row, self.column, self._held = [Line()], 0, 0, ""
        while taken and not taken[-1].text:
            taken.pop()
        return taken

    def _obey(self, control: re.Match[str]) -> None:
        code = control[0]
        if code == "\n":
            self._down(1)
            self.column = 0
        elif code == "\r":
            self.column = 0
        elif code == "\b":
            self.column = max(0, self.column - 1)
        elif control[2] == "m":
            self.style = _styled(self.style, control[1])
        elif control[2]:
            self._move(control[2], control[1])

    def _move(self, kind: str, parameters: str) -> None:
        given = int(parameters) if parameters.isdecimal() else 0
        count = min(max(1, given), LONGEST_LINE)
        if kind == "A":
            self.row = max(0, self.row - count)
            self.reach = max(self.reach, len(self.lines) - 1 - self.row)
            self.begun = 0
        elif kind == "B":
            self._down(min(count, 100))
        elif kind == "C":
            self.column += count
        elif kind == "G":
            self.column = count - 1
        elif kind == "K":
            self._erase(given)

    def _down(self, count: int) -> None:
        self.row += count
        while self.row >= len(self.lines):
            self.lines.append(Line())
            self.begun += 1
        if self.begun > self.reach:
            self.reach = 0

    def _erase(self, kind: int) -> None:
        line = self.lines[self.row]
        if kind == 0:
            line.text = line.text[: self.column]
            line.styles = line.styles[: self.column] if line.styles else None
        else:
            line.text, line.styles = "", None

    def _put(self, text: str) -> None:
        text = text[: max(0, LONGEST_LINE - self.column)]
        if not text:
            return
        line = self.lines[self.row]
        end = self.column + len(text)
        if line.styles is None and self.style != PLAIN:
            line.styles = [PLAIN] * len(line.text)
        if len(line.text) < self.column:
            gap = self.column - len(line.text)
            line.text += " " * gap
            if line.styles is not None:
                line.styles += [PLAIN] * gap
        line.text = line.text[: self.column] + text + line.text[end:]
        if line.styles is not None:
            line.styles[self.column : end] = [self.style] * len(text)
        self.column = end


def _styled(style: Style, parameters: str) -> Style:
    codes = [int(p) if p.isdecimal() else 0 for p in parameters.split(";")]
    at = 0
    while at < len(codes):
        code = codes[at]
        if code in (38, 48):
            length = 3 if codes[at + 1 : at + 2] == [5] else 5
            colour = ";".join(map(str, codes[at : at + length]))
            style = style.having("colour" if code == 38 else "background", colour)
            at += length
            continue
        style = _simple_style(style, code)
        at += 1
    return style


def _simple_style(style: Style, code: int) -> Style:
    if code == 0:
        return PLAIN
    if code in _SWITCHES:
        return style.having(_SWITCHES[code], value=True)
    if code == 22:
        return replace(style, bold=False, faint=False)
    if code - 20 in _SWITCHES:
        return style.having(_SWITCHES[code - 20], value=False)
    return _coloured(style, code)


def _coloured(style: Style, code: int) -> Style:
    if code in (39, 49):
        return style.having("colour" if code == 39 else "background", "")
    tens, digit = divmod(code, 10)
    if tens in (3, 9) and digit < 8:
        return replace(style, colour=str(code))
    if tens in (4, 10) and digit < 8:
        return replace(style, background=str(code))
    return style


def _css_colour(code: str) -> str:
    if not code:
        return ""
    parts = [int(p) for p in code.split(";")]
    if len(parts) == 1:
        tens, digit = divmod(parts[0], 10)
        return PALETTE[digit + (8 if tens >= 9 else 0)]
    if len(parts) == 3:
        return _of_256(min(parts[2], 255))
    red, green, blue = (min(p, 255) for p in (*parts[2:], 0, 0, 0)[:3])
    return f"rgb({red},{green},{blue})"


def _of_256(number: int) -> str:
    if number < 16:
        return PALETTE[number]
    if number < 232:
        steps = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
        return "rgb({},{},{})".format(*(step * 40 + 55 if step else 0 for step in steps))
    grey = (number - 232) * 10 + 8
    return f"rgb({grey},{grey},{grey})"
