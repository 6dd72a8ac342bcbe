"""A small table as text with aligned columns, and as HTML."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as lines, each column as wide as its longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a head; all text is escaped."""
    body = "".join(_row("td", row) for row in rows)
    return f"<table>{_row('th', head)}{body}</table>"


def _row(tag: str, texts: Sequence[str]) -> str:
    # Notebooks align cells to the right, which suits numbers only.
    cells = (f'<{tag} style="text-align:left">{html.escape(text)}</{tag}>' for text in texts)
    return f"<tr>{''.join(cells)}</tr>"
