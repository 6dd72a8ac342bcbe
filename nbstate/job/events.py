"""One thread's loop over descriptors and deadlines, which other threads may ask to do something."""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from typing import TYPE_CHECKING

from nbstate.job.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable


class Events:
    """What happens to one run. Used from the job's thread, but for `ask`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_end, self._wake = os.pipe()
        os.set_blocking(self._wake_end, False)
        self._over = False
        self._asking = threading.RLock()  # an interrupt may ask while the main thread does
        self._asked: deque[Callable[[], None]] = deque()
        self._deadlines = Deadlines()
        self.at = self._deadlines.at
        self.clear_deadlines = self._deadlines.clear
        self.listen(self._wake_end, self._do_what_was_asked)

    @property
    def descriptors(self) -> tuple[int, int]:
        """Both ends of the pipe that wakes the loop."""
        return self._wake_end, self._wake

    def ask(self, action: Callable[[], None]) -> bool:
        """Have something done, from any thread; False when all is over: then it is not done."""
        with self._asking:
            if self._over:
                return False
            self._asked.append(action)
            os.write(self._wake, b".")
            return True

    def listen(self, descriptor: int, react: Callable[[], None]) -> None:
        """Call `react` whenever there is something to read."""
        self._selector.register(descriptor, selectors.EVENT_READ, react)

    def forget(self, *descriptors: int) -> None:
        """No longer listen there."""
        for descriptor in descriptors:
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)

    def take(self) -> None:
        """Wait for what happens next, a deadline at the latest, and react to it."""
        for key, _ in self._selector.select(self._deadlines.until_next()):
            if key.fd in self._selector.get_map():
                key.data()
        self._deadlines.meet()

    def _do_what_was_asked(self) -> None:
        os.read(self._wake_end, 4096)
        while self._asked:
            self._asked.popleft()()

    def close(self) -> None:
        """Do what was asked last, and nothing from here on."""
        with self._asking:
            self._over = True
            while self._asked:
                self._asked.popleft()()
        self._selector.close()
        os.close(self._wake_end)
        os.close(self._wake)
