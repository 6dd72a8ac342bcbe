"""Small pictures as SVG inside an image, which untrusted pages show too."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 110, 22


def image(svg: str, said: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return an `<img>` with an SVG in it; `said` is its text."""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img src="data:image/svg+xml;base64,{data}" alt="{said}" title="{said}"'
        f' width="{width}" height="{height}" style="vertical-align:middle">'
    )


def line(values: Sequence[float], low: float, high: float, said: str) -> str:
    """Return a line through values, between the same bounds for all that are compared."""
    finite = [value for value in values if math.isfinite(value)]
    span = (high - low) or 1.0
    step = WIDTH / max(1, len(finite) - 1)
    points = " ".join(
        f"{i * step:.1f},{HEIGHT - 2 - (value - low) / span * (HEIGHT - 4):.1f}"
        for i, value in enumerate(finite)
    )
    drawn = f'<polyline points="{points}" fill="none" stroke="#0969da" stroke-width="1.5"/>'
    return image(_svg(drawn), said)


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
