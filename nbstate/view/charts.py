"""Small pictures as SVG inside an image, which untrusted pages show too."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Point = tuple[float, float]

WIDTH, HEIGHT = 110, 22


def image(svg: str, said: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return an `<img>` with an SVG in it; `said` is its text."""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img src="data:image/svg+xml;base64,{data}" alt="{said}" title="{said}"'
        f' width="{width}" height="{height}" style="vertical-align:middle">'
    )


def line(curve: Sequence[Point], compared: Sequence[Sequence[Point]], said: str) -> str:
    """Return a line through the finite points of a curve, on one scale for all that are compared.

    Parameters
    ----------
    curve
        The points, as `(x, y)`.
    compared
        All curves that have this scale, this one among them.
    """
    finite = [point for each in compared for point in _finite(each)]
    left, wide = _extent([x for x, _ in finite])
    low, tall = _extent([y for _, y in finite])
    points = " ".join(
        f"{(x - left) / wide * WIDTH:.1f},{HEIGHT - 2 - (y - low) / tall * (HEIGHT - 4):.1f}"
        for x, y in _finite(curve)
    )
    drawn = f'<polyline points="{points}" fill="none" stroke="#0969da" stroke-width="1.5"/>'
    return image(_svg(drawn), said)


def _finite(curve: Sequence[Point]) -> list[Point]:
    return [point for point in curve if math.isfinite(point[1])]


def _extent(values: Sequence[float]) -> tuple[float, float]:
    """Return the least value, and how far the greatest is from it; 1 where all are equal."""
    low = min(values, default=0.0)
    return low, max(values, default=0.0) - low or 1.0


def strip(share: float, said: str) -> str:
    """Return a bar that is full to `share`, from 0 to 1."""
    full = WIDTH * min(max(share, 0.0), 1.0)
    drawn = (
        f'<rect width="{WIDTH}" height="12" y="5" fill="#808080" fill-opacity=".25"/>'
        f'<rect width="{full:.1f}" height="12" y="5" fill="#0969da"/>'
    )
    return image(_svg(drawn), said)


def _svg(drawn: str) -> str:
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{drawn}</svg>'
