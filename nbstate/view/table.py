"""A table that shows itself as HTML and as text."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Table:
    """Rows that show themselves as HTML and as text; a marked row differs from most."""

    def __init__(
        self,
        heading: Sequence[str],
        rows: Sequence[Sequence[object]],
        marked: Sequence[int] = (),
    ) -> None:
        self._heading = [*heading, ""] if marked else list(heading)
        self._rows = [
            [str(item) for item in row] + (["differs" if i in marked else ""] if marked else [])
            for i, row in enumerate(rows)
        ]
        self._marked = set(marked)

    def __repr__(self) -> str:
        return aligned([self._heading, *self._rows])

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{html.escape(t)}</th>" for t in self._heading)
        rows = [
            "".join(f"<td style='text-align:left'>{html.escape(item)}</td>" for item in row)
            for row in self._rows
        ]
        bold = ' style="font-weight:bold"'
        shown = "".join(
            f"<tr{bold if i in self._marked else ''}>{row}</tr>" for i, row in enumerate(rows)
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{shown}</tbody></table>"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(item.ljust(width) for item, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
