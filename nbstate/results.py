"""What a run gives back: one value per local rank."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, overload


class RankResults(Sequence[Any]):
    """What the ranks of a run returned, in rank order.

    A sequence that never changes; a slice of it is a list. As the last line of a cell it shows
    nothing when every rank returned None.

    Examples
    --------
    >>> results = RankResults([0.5, 0.25])
    >>> results[1], results[:1], len(results)
    (0.25, [0.5], 2)
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = list(values)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RankResults):
            return self._values == other._values
        return isinstance(other, (list, tuple)) and self._values == list(other)

    __hash__ = None  # type: ignore[assignment] # like a list: equal content, not identity

    def __repr__(self) -> str:
        return f"RankResults({self._values!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("RankResults(...)" if cycle else "RankResults(")
        if not cycle:
            printer.pretty(self._values)
            printer.text(")")

    @property
    def _ipython_display_(self) -> Any:
        """Silence for a run that returned nothing; without it IPython shows the text."""
        if all(value is None for value in self._values):
            return _wipe_prompt
        raise AttributeError("_ipython_display_")


def _wipe_prompt() -> None:
    # Before it asks for anything to show, IPython in a terminal writes "Out[2]: ".
    if sys.stdout.isatty():
        sys.stdout.write("\r\x1b[K")
