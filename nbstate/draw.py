"""Teaching pictures: how inputs are split, what a collective moves, when gradients are applied.

Each function returns a `Picture`, which a notebook shows and `print` gives as text.

Examples
--------
>>> from nbstate import draw
>>> draw.split(3, 2)
rank 0: 0 1
rank 1: 2
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbstate.state.splitting import share
from nbstate.view import charts
from nbstate.view.table import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbstate.view.publish import Bundle

COLOURS = ("#0969da", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#cf222e", "#57606a", "#0a7ea4")
BOX, GAP = 30, 4

Grid = list[list[str]]


@dataclass(frozen=True)
class Picture:
    """A drawing with its text."""

    svg: str
    text: str
    width: int
    height: int

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        said = html.escape(self.text, quote=True)
        picture = charts.image(self.svg, said, self.width, self.height)
        return {"text/plain": self.text, "text/html": picture}


def split(inputs: int | Sequence[Any], num_processes: int = 2, *, padding: bool = False) -> Picture:
    """Return a picture of how `split_between_processes` deals inputs to ranks.

    Parameters
    ----------
    inputs
        How many items, or a short sequence of them.
    num_processes
        How many ranks.
    padding
        Repeat the last item until all parts are equally long.

    Examples
    --------
    >>> draw.split(5, 2)
    rank 0: 0 1 2
    rank 1: 3 4
    >>> draw.split(5, 2, padding=True)
    rank 0: 0 1 2
    rank 1: 3 4 (4)
    """
    items = [str(item) for item in (range(inputs) if isinstance(inputs, int) else inputs)]
    parts = []
    for rank in range(num_processes):
        part = [items[at] for at in share(len(items), rank, num_processes)]
        missing = len(share(len(items), 0, num_processes)) - len(part)
        repeated = [f"({items[-1]})"] * missing if padding and items else []
        parts.append(part + repeated)
    text = "\n".join(f"rank {rank}: {' '.join(part)}" for rank, part in enumerate(parts))
    boxes = _Boxes()
    for rank, part in enumerate(parts):
        boxes.label(0, rank, f"rank {rank}")
        for column, item in enumerate(part):
            boxes.box(column + 2, rank, item, COLOURS[rank % len(COLOURS)])
    return boxes.picture(text)


def collective(name: str = "all_reduce", num_processes: int = 4) -> Picture:
    """Return a picture of what each rank has before and after a collective.

    Parameters
    ----------
    name
        ``"broadcast"``, ``"scatter"``, ``"gather"``, ``"all_gather"``, ``"reduce"``,
        ``"all_reduce"``, ``"reduce_scatter"`` or ``"all_to_all"``, as in `torch.distributed`; the
        root is rank 0.
    num_processes
        How many ranks, up to 8.

    Raises
    ------
    ValueError
        There is no collective of this name, or the ranks are too many to draw.

    Examples
    --------
    >>> draw.collective("all_reduce", 2)
            before  after
    rank 0  A       A+B
    rank 1  B       A+B
    """
    if name not in _COLLECTIVES:
        raise ValueError(f"{name!r}: choose one of {', '.join(map(repr, _COLLECTIVES))}")
    if not 1 <= num_processes <= len(COLOURS):
        raise ValueError(f"num_processes={num_processes}: from 1 to {len(COLOURS)} can be drawn")
    before, after = _COLLECTIVES[name](num_processes)
    rows = [
        [f"rank {rank}", " ".join(before[rank]), " ".join(after[rank])]
        for rank in range(num_processes)
    ]
    boxes = _Boxes()
    middle = 2 + max(map(len, before))
    for rank in range(num_processes):
        boxes.label(0, rank, f"rank {rank}")
        boxes.row(2, rank, before[rank])
        boxes.label(middle, rank, "→")
        boxes.row(middle + 1, rank, after[rank])
    return boxes.picture(aligned([["", "before", "after"], *rows]))


def accumulation(steps: int = 2, batches: int = 5) -> Picture:
    """Return a picture of when gradients are summed between ranks and applied.

    Parameters
    ----------
    steps
        Batches whose gradients are accumulated.
    batches
        How many batches the data has; the last one always ends with a step.

    Examples
    --------
    >>> draw.accumulation(2, 3)
    batch            0      1     2
    sync_gradients   False  True  True
    optimizer steps         *     *
    """
    if steps < 1 or batches < 1:
        raise ValueError(f"steps={steps}, batches={batches}: both are at least 1")
    syncs = [(batch + 1) % steps == 0 or batch == batches - 1 for batch in range(batches)]
    text = aligned(
        [
            ["batch ", *map(str, range(batches))],
            ["sync_gradients ", *map(str, syncs)],
            ["optimizer steps", *("*" if sync else "" for sync in syncs)],
        ]
    )
    boxes = _Boxes()
    for row, label in enumerate(("batch", "synced", "step")):
        boxes.label(0, row, label)
    for batch, sync in enumerate(syncs):
        boxes.box(batch + 2, 0, str(batch), COLOURS[0])
        boxes.box(batch + 2, 1, "yes" if sync else "no", COLOURS[1] if sync else "#afb8c1")
        if sync:
            boxes.box(batch + 2, 2, "↑", COLOURS[2])
    return boxes.picture(text)


# -- what collectives do


def _one_each(n: int) -> Grid:
    return [[letter] for letter in _letters(n)]


def _letters(n: int) -> list[str]:
    return [chr(ord("A") + rank) for rank in range(n)]


def _rows(n: int) -> Grid:
    return [[f"{letter}{part}" for part in range(n)] for letter in _letters(n)]


def _only_root(n: int, held: list[str]) -> Grid:
    return [held, *([] for _ in range(n - 1))]


def _total(n: int, part: object = "") -> str:
    return "+".join(f"{letter}{part}" for letter in _letters(n))


_COLLECTIVES: dict[str, Callable[[int], tuple[Grid, Grid]]] = {
    "broadcast": lambda n: (_only_root(n, ["A"]), [["A"]] * n),
    "scatter": lambda n: (_only_root(n, _letters(n)), _one_each(n)),
    "gather": lambda n: (_one_each(n), _only_root(n, _letters(n))),
    "all_gather": lambda n: (_one_each(n), [_letters(n)] * n),
    "reduce": lambda n: (_one_each(n), _only_root(n, [_total(n)])),
    "all_reduce": lambda n: (_one_each(n), [[_total(n)]] * n),
    "reduce_scatter": lambda n: (_rows(n), [[_total(n, part)] for part in range(n)]),
    "all_to_all": lambda n: (_rows(n), [list(column) for column in zip(*_rows(n), strict=True)]),
}


class _Boxes:
    """Boxes and labels on a grid."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._right = self._bottom = 0.0

    def label(self, column: float, row: int, text: str) -> None:
        x, y = self._place(column, row)
        self._parts.append(f'<text x="{x + 2}" y="{y + 20}" fill="#57606a">{text}</text>')

    def box(self, column: float, row: int, text: str, colour: str, cells: float = 1) -> None:
        x, y = self._place(column, row)
        width = cells * (BOX + GAP) - GAP
        self._right = max(self._right, x + width)
        said = html.escape(text)
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{BOX}" rx="4" fill="{colour}"/>'
            f'<text x="{x + width / 2}" y="{y + 20}" fill="#fff" text-anchor="middle">{said}</text>'
        )

    def row(self, column: float, row: int, texts: Sequence[str]) -> None:
        for text in texts:
            cells = max(1.0, len(text) / 3)
            colour = COLOURS[(ord(text[0]) - ord("A")) % len(COLOURS)]
            self.box(column, row, text, "#24292f" if "+" in text else colour, cells)
            column += cells

    def picture(self, text: str) -> Picture:
        width, height = int(self._right + GAP), int(self._bottom + GAP)
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        style = 'font-family="sans-serif" font-size="12"'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(self._parts)}</svg>'
        return Picture(svg, text, width, height)

    def _place(self, column: float, row: int) -> tuple[float, float]:
        x, y = column * (BOX + GAP), row * (BOX + GAP)
        self._right = max(self._right, x + BOX)
        self._bottom = max(self._bottom, y + BOX)
        return x, y
