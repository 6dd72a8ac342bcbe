"""What is to be done at a later moment, for a loop that sleeps until then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Deadlines:
    """Actions and their moments. Used from one thread."""

    def __init__(self) -> None:
        self._due: list[tuple[float, Callable[[], None]]] = []

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Have `action` done in so many seconds."""
        self._due.append((time.monotonic() + seconds, action))

    def clear(self) -> None:
        """Do none of them."""
        self._due.clear()

    def until_next(self) -> float | None:
        """Return the seconds that may be slept, None where nothing is to be done."""
        if not self._due:
            return None
        return max(0.0, min(when for when, _ in self._due) - time.monotonic())

    def meet(self) -> None:
        """Do what is due."""
        moment = time.monotonic()
        due = [action for when, action in self._due if when <= moment]
        self._due = [item for item in self._due if item[0] > moment]
        for action in due:
            action()
