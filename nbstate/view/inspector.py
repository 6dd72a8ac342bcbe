"""A live table of ranks: what each is doing, its states, numbers, memory and CPU.

    inspector's thread --Inspect--> ranks --Inspected--> job's loop --> Watched --> the cell

It lives as long as its ranks, and looks twice a second; the table it leaves needs nothing.
"""

from __future__ import annotations

import contextvars
import html
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbstate import memory
from nbstate.job import processes
from nbstate.mistakes import told_at_the_call
from nbstate.view import charts
from nbstate.view.publish import Cell, fresh_id, this_place
from nbstate.view.table import aligned
from nbstate.wire import Inspect, Inspected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbstate.job import Job
    from nbstate.job.ranks import Rank
    from nbstate.metrics import Curve
    from nbstate.session import Session
    from nbstate.view.publish import Bundle

EVERY = 0.5
"""Seconds between two looks."""
ANSWER_WITHIN = 1.0
"""Seconds that ranks get to answer before a table is shown, so that it is whole."""

_known: weakref.WeakValueDictionary[int, Inspector] = weakref.WeakValueDictionary()
"""By the number of what is looked at: two tables of the same would ask the ranks twice as often."""

_CELL = 'style="text-align:left;padding:2px 8px"'
_ODD = 'style="text-align:left;padding:2px 8px;font-weight:bold;background:rgba(255,200,0,.25)"'


def inspect(ranks: Job | Session) -> Inspector:
    """Return a live table of the ranks of a job or session.

    As the last line of a cell it shows itself and goes on until the ranks are gone; then it stays
    as it is. `print` gives it as text.

    Parameters
    ----------
    ranks
        A job, such as `launch` returns, or a session.

    Raises
    ------
    TypeError
        It is neither.

    Examples
    --------
    >>> import time
    >>> job = launch(time.sleep, 60, num_processes=2)
    >>> table = inspect(job)  # as the last line of a cell it shows, and follows
    >>> job.stop()
    """
    from nbstate.job import Job
    from nbstate.session import Session

    with told_at_the_call():
        if not isinstance(ranks, (Job, Session)):
            raise TypeError(f"inspect({ranks!r}): expected a job or a session")
    found = _known.get(id(ranks))
    if found is None or not found.is_of(ranks):
        job, session = (ranks.job, ranks) if isinstance(ranks, Session) else (ranks, None)
        found = _known[id(ranks)] = Inspector(job, session)
    return found


class Inspector:
    """The table, in all cells that show it; made by `inspect`, once for a job or session."""

    def __init__(self, job: Job, session: Session | None = None) -> None:
        self._job = job
        self._session = None if session is None else weakref.ref(session)  # to look is not to keep
        self._rows: dict[int, Watched] = {}
        self._states: dict[int, dict[str, dict[str, str]]] = {}
        self._heard = threading.Event()
        self._listens_to: Job | None = None
        self._places: list[tuple[Cell, str]] = []
        self._showing = threading.Lock()
        self._is_live = False
        self._awaited: set[int] = set()

    def is_of(self, ranks: Job | Session) -> bool:
        """Tell whether it looks at these ranks."""
        return ranks is (self._job if self._session is None else self._session())

    def __repr__(self) -> str:
        self._look_well()
        return self._text()

    def _ipython_display_(self) -> None:
        place, display_id = this_place(), fresh_id()
        self._look_well()
        place.show(self._bundle(), display_id)
        if not isinstance(place, Cell) or self._over:
            return
        with self._showing:
            # A cell that is run again has lost what it showed before.
            others = [shown for shown in self._places if not shown[0].is_same_cell(place)]
            self._places = [*others, (place, display_id)]
            if not self._is_live:
                self._is_live = True
                context = contextvars.copy_context()
                threading.Thread(
                    target=context.run, args=(self._live,), name="nbstate-inspector", daemon=True
                ).start()

    def _live(self) -> None:
        shown: Bundle = {}
        while True:
            over = self._over
            self._look()
            bundle = self._bundle()
            if bundle != shown:
                for place, display_id in tuple(self._places):
                    place.show(bundle, display_id, update=True)
                shown = bundle
            if over:
                return
            time.sleep(EVERY)

    # -- looking

    @property
    def _over(self) -> bool:
        session = self._of_session()
        return self._job.done if session is None else session.closed

    def _of_session(self) -> Session | None:
        return None if self._session is None else self._session()

    def _look_well(self) -> None:
        """Look, and wait a while for what the ranks answer."""
        self._look()
        if not self._over:
            self._heard.wait(ANSWER_WITHIN)

    def _look(self) -> None:
        session = self._of_session()
        job = self._job = self._job if session is None else session.job
        if self._listens_to is not job:  # the first time, and after a refork
            self._listens_to = job
            self._rows = {rank.index: Watched(rank) for rank in job.ranks}
            self._states = {}
            job.handlers[Inspected] = self._take
        asked = [r.rank for r in self._rows.values() if r.rank.alive and r.rank.state != "done"]
        self._awaited = {rank.index for rank in asked}
        (self._heard.clear if asked else self._heard.set)()
        for rank in asked:
            job.tell(rank.index, Inspect())
        for row in self._rows.values():
            row.look()

    def _take(self, rank: Rank, message: Inspected) -> None:
        self._states[rank.index] = message.states
        self._awaited.discard(rank.index)
        if not self._awaited:
            self._heard.set()

    # -- the table

    def _doing(self, row: Watched) -> str:
        rank = row.rank
        if not rank.alive or rank.state == "done":
            return rank.state
        session = self._of_session()
        if session is not None and not _is_asked(session, rank):
            return "idle"
        return rank.doing or rank.state

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the heading and a row of text for each rank."""
        metrics = self._job.metrics
        names = list(metrics.series)
        rows = []
        for index, row in self._rows.items():
            numbers = [_last(metrics.series[name].get(index)) for name in names]
            step = str(metrics.steps.get(index, "")) if names else ""
            size = memory.in_words(row.memory) if row.memory else ""
            facts = [str(index), str(row.rank.pid), self._doing(row), step, *numbers]
            cpu = "" if row.cpu is None or not row.rank.alive else f"{row.cpu:.0f} %"
            rows.append([*facts, size, cpu])
        return ["rank", "pid", "doing", "step", *names, "memory", "CPU"], rows

    def _facts(self) -> list[tuple[str, str, list[str]]]:
        """Return, for each fact of a state, the state, the fact, and its value on each rank."""
        there = {
            (state, label): None
            for states in self._states.values()
            for state, facts in states.items()
            for label in facts
        }
        return [
            (
                state,
                label,
                [self._states.get(i, {}).get(state, {}).get(label, "-") for i in self._rows],
            )
            for state, label in there
        ]

    def _text(self) -> str:
        heading, rows = self._cells()
        parts = [aligned([heading, *rows])]
        facts = [
            [f"{state}: {label}", *values, "differs" if _differs(label, values) else ""]
            for state, label, values in self._facts()
        ]
        if facts:
            ranks = [f"rank {index}" for index in self._rows]
            parts.append(aligned([["state", *ranks, ""], *facts]))
        return "\n\n".join(parts)

    def _bundle(self) -> Bundle:
        return {"text/plain": self._text(), "text/html": self._html()}

    def _html(self) -> str:
        heading, rows = self._cells()
        names = heading[4:-2]
        drawn = [
            [html.escape(item) for item in row[:4]]
            + [self._chart(name, index, row[4 + i]) for i, name in enumerate(names)]
            + [self._strip(watched, row[-2]), html.escape(row[-1])]
            for (index, watched), row in zip(self._rows.items(), rows, strict=True)
        ]
        parts = [_table(heading, drawn)]
        if self._facts():
            parts.append(self._states_html())
        return f'<div style="font-size:13px">{"".join(parts)}</div>'

    def _states_html(self) -> str:
        heading = ["", *(f"rank {index}" for index in self._rows)]
        shown, before = [], ""
        for state, label, values in self._facts():
            if state != before:
                shown.append(
                    f"<tr><th {_CELL} colspan={len(heading)}>{html.escape(state)}</th></tr>"
                )
                before = state
            kind = _ODD if _differs(label, values) else _CELL
            items = "".join(f"<td {kind}>{html.escape(value)}</td>" for value in values)
            shown.append(f"<tr><td {_CELL}>{html.escape(label)}</td>{items}</tr>")
        return f"<table>{_head(heading)}<tbody>{''.join(shown)}</tbody></table>"

    def _chart(self, name: str, index: int, last: str) -> str:
        series = self._job.metrics.series[name].copy()  # a thread adds to it
        if index not in series:
            return ""
        curves = {rank: tuple(curve.points) for rank, curve in series.items()}
        said = html.escape(f"{name} of rank {index}: {last}")
        return f"{html.escape(last)} {charts.line(curves[index], list(curves.values()), said)}"

    def _strip(self, row: Watched, said: str) -> str:
        most = max((watched.memory for watched in self._rows.values()), default=0) or 1
        return f"{html.escape(said)} {charts.strip(row.memory / most, said)}" if row.memory else ""


@dataclass
class Watched:
    """What is measured of one rank from outside."""

    rank: Rank
    memory: int = 0
    cpu: float | None = None
    _before: tuple[float, float] | None = field(default=None)

    def look(self) -> None:
        """Measure memory, and from the second look on the use of the CPU since the last one."""
        usage = processes.usage(self.rank.pid) if self.rank.pid and self.rank.alive else None
        if usage is None:
            return
        now = time.monotonic()
        self.memory, used = usage
        if self._before is not None and now > self._before[0]:
            self.cpu = 100 * (used - self._before[1]) / (now - self._before[0])
        self._before = now, used


def _is_asked(session: Session, rank: Rank) -> bool:
    doing = session.doing
    return doing is not None and rank.index in doing.pending


def _differs(label: str, values: Sequence[str]) -> bool:
    # Which process it is differs by nature.
    return "index" not in label.lower() and len(set(values)) > 1


def _last(curve: Curve | None) -> str:
    return f"{curve.points[-1][1]:.4g}" if curve is not None and curve.points else ""


def _head(heading: Sequence[str]) -> str:
    cells = "".join(f"<th {_CELL}>{html.escape(text)}</th>" for text in heading)
    return f"<thead><tr>{cells}</tr></thead>"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{item}</td>" for item in row) + "</tr>" for row in rows
    )
    return f"<table>{_head(heading)}<tbody>{shown}</tbody></table>"
