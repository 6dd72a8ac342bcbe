"""Collectives and steps of all ranks over time: a picture, a table, and a file for Perfetto."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbstate.memory import in_words
from nbstate.view import charts
from nbstate.wire import STEP

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pandas as pd

    from nbstate.view.publish import Bundle
    from nbstate.wire import Span

WIDTH, ROW, LEFT = 900, 34, 60
SHOWN = 2000
"""Collectives and steps of a rank that the picture has at most: the last ones."""
STEP_COLOURS = ("#8c959f", "#d0d7de")
"""Of one step and the next, so that they can be told apart."""
LATEST = "#cf222e"
COLOURS = ("#0969da", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#1b7c83")


@dataclass(frozen=True)
class Call:
    """One collective or step on one rank.

    `late` is how much later this rank began than the first one, in seconds.
    """

    rank: int
    span: Span
    late: float

    @property
    def is_step(self) -> bool:
        """Whether it is a step."""
        return self.span.what.name == STEP

    def __str__(self) -> str:
        what = self.span.what
        return f"{STEP} {what.details}" if self.is_step else str(what)


class Timeline:
    """What the ranks of a job called together, their steps, and who was late.

    As the last line of a cell it shows a picture: a row for each rank, a bar from when the rank
    came to a collective until it was over, and above these a band with a piece for each step of
    an optimizer. The collective to which a rank came latest, after the first of its group, has a
    red frame.

    Parameters
    ----------
    spans
        By rank, in order.
    """

    def __init__(self, spans: Mapping[int, Sequence[Span]]) -> None:
        self._spans = {rank: list(found) for rank, found in sorted(spans.items())}
        starts: dict[tuple[str, str, int], int] = {}
        for found in self._spans.values():
            for span in found:
                key = _key(span)
                starts[key] = min(span.began, starts.get(key, span.began))
        self.calls = [
            Call(rank, span, (span.began - starts[_key(span)]) / 1e9)
            for rank, found in self._spans.items()
            for span in found
        ]
        """Every collective and step of every rank, by rank, in the order in which they ended."""
        self._first = min(starts.values(), default=0)
        collectives = [call for call in self.calls if not call.is_step]
        self._latest = max(collectives or self.calls, key=lambda call: call.late, default=None)

    def table(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each collective and step of each rank.

        Its columns are rank, op (``step`` for a step), details, bytes, group, call (the number in
        its group; each cell of a session counts anew), where, start, end and late; times are in
        seconds, from the first of all on.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("a timeline's table is a pandas frame: pip install pandas") from error

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
        if self._latest is None:
            return "neither a collective nor a step was traced"
        counts = {rank: _counted(found) for rank, found in self._spans.items()}
        if len(set(counts.values())) == 1:
            told = f"each rank: {next(iter(counts.values()))}"
        else:
            told = "; ".join(f"rank {rank}: {count}" for rank, count in counts.items())
        late = self._latest
        return (
            f"{told}\n"
            f"latest: rank {late.rank}, {late.late * 1000:.1f} ms after the first, "
            f"in {late} ({late.span.what.where})"
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
            yield _named("process_name", f"rank {rank}", rank)
            calls = [call for call in self.calls if call.rank == rank]
            steps = _lanes(call for call in calls if call.is_step)
            collectives = _lanes(call for call in calls if not call.is_step)
            for lane, (name, found) in enumerate(
                [("steps", lane) for lane in steps]
                + [("collectives", lane) for lane in collectives]
            ):
                yield _named("thread_name", name, rank, lane)
                yield from (self._event(call, lane) for call in found)

    def _event(self, call: Call, lane: int) -> dict[str, Any]:
        what = call.span.what
        return {
            "ph": "X",
            "pid": call.rank,
            "tid": lane,
            "name": str(call) if call.is_step else what.name,
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
        shown = {
            rank: [call for call in self.calls if call.rank == rank][-SHOWN:]
            for rank, found in self._spans.items()
            if found
        }
        spans = [call.span for calls in shown.values() for call in calls]
        first, last = min(span.began for span in spans), max(span.ended for span in spans)
        scale = (WIDTH - LEFT - 10) / max(1, last - first)
        names = [call.span.what.name for calls in shown.values() for call in calls]
        colours = dict(zip(dict.fromkeys(n for n in names if n != STEP), cycle(COLOURS)))
        parts = []
        for row, (rank, calls) in enumerate(shown.items()):
            parts.append(f'<text x="4" y="{row * ROW + 21}">rank {rank}</text>')
            for call in calls:
                x = LEFT + (call.span.began - first) * scale
                width = max(1.0, (call.span.ended - call.span.began) * scale)
                parts.append(self._bar(call, x, row * ROW, width, colours))
        told = {**({STEP: STEP_COLOURS[1]} if STEP in names else {}), **colours}
        parts += _legend(told, height, f"{(last - first) / 1e6:.1f} ms")
        size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        style = 'font-family="sans-serif" font-size="12" fill="#57606a"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>'

    def _bar(self, call: Call, x: float, y: int, width: float, colours: Mapping[str, str]) -> str:
        what = call.span.what
        if call.is_step:
            top, tall, colour = y + 3, 5, STEP_COLOURS[what.number % 2]
        else:
            top, tall, colour = y + 10, 18, colours[what.name]
        frame = f' stroke="{LATEST}" stroke-width="2"' if call is self._latest and call.late else ""
        said = html.escape(
            f"{call}, {in_words(call.span.size)}, {call.late * 1000:.1f} ms late; {what.where}"
        )
        return (
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{tall}" fill="{colour}"'
            f"{frame}><title>{said}</title></rect>"
        )


def _key(span: Span) -> tuple[str, str, int]:
    """Return what is the same on all ranks that make one call together."""
    return span.what.group, span.scope, span.what.number


def _counted(spans: Sequence[Span]) -> str:
    steps = sum(span.what.name == STEP for span in spans)
    counts = ((steps, "step"), (len(spans) - steps, "collective"))
    told = [f"{count} {word}{'s' * (count != 1)}" for count, word in counts if count]
    return " and ".join(told) or "nothing"


def _lanes(calls: Iterable[Call]) -> list[list[Call]]:
    """Return the calls in rows within which none begins before the one before has ended."""
    lanes: list[list[Call]] = []
    for call in sorted(calls, key=lambda call: call.span.began):
        free = (lane for lane in lanes if lane[-1].span.ended <= call.span.began)
        lane = next(free, None)
        if lane is None:
            lanes.append([call])
        else:
            lane.append(call)
    return lanes


def _named(kind: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "ts": 0, "args": {"name": name}}


def _legend(colours: Mapping[str, str], height: int, duration: str) -> Iterator[str]:
    x = LEFT
    for name, colour in colours.items():
        yield (
            f'<rect x="{x}" y="{height - 18}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{x + 14}" y="{height - 8}">{name}</text>'
        )
        x += 30 + 7 * len(name)
    yield f'<text x="{x}" y="{height - 8}">{duration}</text>'
