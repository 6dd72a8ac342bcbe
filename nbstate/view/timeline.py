"""Collectives of all ranks over time: a picture, a table, and a file for Perfetto."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbstate.memory import in_words
from nbstate.view import charts

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd

    from nbstate.view.publish import Bundle
    from nbstate.wire import Span

WIDTH, ROW, LEFT = 900, 26, 60
SHOWN = 2000
"""Collectives of a rank that the picture has at most: the last ones."""
COLOURS = ("#0969da", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#cf222e", "#57606a")


@dataclass(frozen=True)
class Call:
    """One collective on one rank; `late` is how long its group waited for this rank, in seconds."""

    rank: int
    span: Span
    late: float


class Timeline:
    """What the ranks of a job called together, and who was late.

    As the last line of a cell it shows a picture: a row for each rank, a bar from when the rank
    came to a collective until it was over.

    Parameters
    ----------
    spans
        By rank, in order.
    """

    def __init__(self, spans: Mapping[int, Sequence[Span]]) -> None:
        self._spans = {rank: list(found) for rank, found in sorted(spans.items())}
        starts: dict[tuple[str, int], int] = {}
        for found in self._spans.values():
            for span in found:
                key = span.what.group, span.what.number
                starts[key] = min(span.began, starts.get(key, span.began))
        self.calls = [
            Call(rank, span, (span.began - starts[span.what.group, span.what.number]) / 1e9)
            for rank, found in self._spans.items()
            for span in found
        ]
        """Every collective of every rank."""
        self._first = min(starts.values(), default=0)

    def table(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each collective of each rank.

        Its columns are rank, op, details, bytes, group, call (the number in its group), where,
        start, end and late; times are in seconds, from the first collective on.
        """
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "rank": call.rank,
                    "op": call.span.what.name,
                    "details": call.span.what.details,
                    "bytes": call.span.size,
                    "group": call.span.what.group,
                    "call": call.span.what.number,
                    "where": call.span.what.where,
                    "start": self._seconds(call.span.began),
                    "end": self._seconds(call.span.ended),
                    "late": call.late,
                }
                for call in self.calls
            ]
        )

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write a file in Chrome's trace format, which https://ui.perfetto.dev opens."""
        Path(path).write_text(json.dumps({"traceEvents": list(self._events())}), encoding="utf-8")

    def __repr__(self) -> str:
        if not self.calls:
            return "no collective was traced"
        counts = ", ".join(f"rank {rank}: {len(found)}" for rank, found in self._spans.items())
        worst = max(self.calls, key=lambda call: call.late)
        return (
            f"collectives of {counts}\n"
            f"latest: rank {worst.rank}, {worst.late * 1000:.1f} ms after the first, "
            f"in {worst.span.what} ({worst.span.what.where})"
        )

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        if not self.calls:
            return {"text/plain": repr(self)}
        height = ROW * (len(self._spans) + 1)
        picture = charts.image(self._svg(height), html.escape(repr(self)), WIDTH, height)
        return {"text/plain": repr(self), "text/html": picture}

    def _seconds(self, moment: int) -> float:
        return (moment - self._first) / 1e9

    def _events(self) -> Iterator[dict[str, Any]]:
        for rank in self._spans:
            yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        for call in self.calls:
            what = call.span.what
            yield {
                "ph": "X",
                "pid": call.rank,
                "tid": 0,
                "name": what.name,
                "cat": what.group,
                "ts": (call.span.began - self._first) / 1e3,
                "dur": (call.span.ended - call.span.began) / 1e3,
                "args": {
                    "details": what.details,
                    "bytes": call.span.size,
                    "call": what.number,
                    "where": what.where,
                    "late_ms": call.late * 1000,
                },
            }

    def _svg(self, height: int) -> str:
        shown = {rank: found[-SHOWN:] for rank, found in self._spans.items() if found}
        first = min(found[0].began for found in shown.values())
        last = max(span.ended for found in shown.values() for span in found)
        scale = (WIDTH - LEFT - 10) / max(1, last - first)
        names = list(dict.fromkeys(span.what.name for found in shown.values() for span in found))
        colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
        parts = []
        for row, (rank, found) in enumerate(shown.items()):
            y = row * ROW
            parts.append(f'<text x="4" y="{y + 17}">rank {rank}</text>')
            for span in found:
                x = LEFT + (span.began - first) * scale
                width = max(1.0, (span.ended - span.began) * scale)
                said = html.escape(f"{span.what}, {in_words(span.size)}; {span.what.where}")
                parts.append(
                    f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="18"'
                    f' fill="{colours[span.what.name]}"><title>{said}</title></rect>'
                )
        x = float(LEFT)
        for name in names:
            parts.append(
                f'<rect x="{x:.0f}" y="{height - 18}" width="10" height="10"'
                f' fill="{colours[name]}"/><text x="{x + 14:.0f}" y="{height - 8}">{name}</text>'
            )
            x += 30 + 7 * len(name)
        parts.append(f'<text x="{x:.0f}" y="{height - 8}">{(last - first) / 1e6:.1f} ms</text>')
        size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        style = 'font-family="sans-serif" font-size="12" fill="#57606a"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>'
