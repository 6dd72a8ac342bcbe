"""Numbers that ranks log while they work, for the inspector to draw."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbstate.wire import Logged

if TYPE_CHECKING:
    from nbstate.job.ranks import Rank

FLUSH_EVERY = 0.1
"""Seconds for which a rank gathers what it logs."""
KEPT = 1000
"""Points of a curve that are kept, an even number; a longer one is thinned evenly."""

_lock = threading.Lock()
_gathered: list[tuple[int, dict[str, float]]] = []
_step = 0


def log(step: int | None = None, **values: float) -> None:
    """Tell the notebook of numbers such as a loss; `nbstate.inspect` draws them per rank.

    Parameters
    ----------
    step
        Which step they belong to. None: the one after the last.
    **values
        Numbers, or tensors with one element.

    Notes
    -----
    Outside ranks nothing is kept. A call costs microseconds: they are sent ten times a second.

    Examples
    --------
    >>> log(loss=0.5)
    """
    global _step  # noqa: PLW0603 - counts the steps of this process
    from nbstate.rank import bootstrap

    numbers = {name: float(value) for name, value in values.items()}
    if bootstrap.talk is None:
        return
    with _lock:
        _step = _step + 1 if step is None else step
        _gathered.append((_step, numbers))
        if len(_gathered) == 1:
            later = threading.Timer(FLUSH_EVERY, flush)
            later.daemon = True
            later.start()


def flush() -> None:
    """Send what has been gathered."""
    from nbstate.rank import bootstrap

    with _lock:
        entries, _gathered[:] = tuple(_gathered), []
    if entries and bootstrap.talk is not None:
        bootstrap.talk.send(Logged(entries))


@dataclass
class Curve:
    """What one rank has logged by one name: `(step, value)` pairs in order, with the last one.

    Thinned, it has every `_every`th of all that came, so that its beginning does not wear away.
    """

    points: list[tuple[int, float]] = field(default_factory=list)
    _came: int = 0
    _every: int = 1

    def add(self, step: int, value: float) -> None:
        """Take the newest point."""
        if self._came and (self._came - 1) % self._every:  # there only as long as it was the last
            self.points[-1] = step, value
        else:
            self.points.append((step, value))
        self._came += 1
        if len(self.points) > KEPT:
            del self.points[1::2]
            self._every *= 2


class Metrics:
    """What the ranks of one job have logged.

    Attributes
    ----------
    series
        By name and rank, the curve.
    steps
        By rank, the last step.
    """

    def __init__(self) -> None:
        self.series: dict[str, dict[int, Curve]] = defaultdict(dict)
        self.steps: dict[int, int] = {}

    def take(self, rank: Rank, message: Logged) -> None:
        """Keep what a rank has logged."""
        for step, values in message.entries:
            self.steps[rank.index] = step
            for name, value in values.items():
                self.series[name].setdefault(rank.index, Curve()).add(step, value)
