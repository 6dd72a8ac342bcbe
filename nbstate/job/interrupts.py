"""Interrupts of a cell that waits for a run: counted, and raised once it is over.

An exception could come anywhere, between a start and the wait for it, or while an earlier interrupt
is being dealt with, and leave ranks that nobody waits for.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from typing_extensions import Self


class Interrupts:
    """Within it `pressed` is called for each interrupt; at its end KeyboardInterrupt is raised.

    Other threads than the main one are never interrupted. Where the user has a handler for SIGINT
    it comes first, and what it does not raise KeyboardInterrupt for is no interrupt.

    Parameters
    ----------
    pressed
        Called in the main thread, between any two steps of what is inside, and perhaps while it
        runs for an earlier interrupt.
    """

    def __init__(self, pressed: Callable[[], None]) -> None:
        self.count = 0
        self._pressed = pressed
        self._theirs: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._theirs = signal.getsignal(signal.SIGINT)
            if callable(self._theirs):
                signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if callable(self._theirs):
            signal.signal(signal.SIGINT, self._theirs)
        if self.count and kind is None:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: FrameType | None) -> None:
        try:
            self._theirs(number, frame)
        except KeyboardInterrupt:
            self.count += 1
            self._pressed()
