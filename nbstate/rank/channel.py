"""A rank's end of its connection to the kernel."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from nbstate.rank import background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from types import FrameType


class Channel:
    """Sends messages from any thread; hands what the kernel sends to the handler of its type.

    Parameters
    ----------
    connection
        The rank's end of a duplex `multiprocessing.Pipe`.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = threading.RLock()
        self._pid = os.getpid()
        self.handlers: dict[type, Callable[..., None]] = {}
        """What to do with a message; one with a memory file comes with the file's descriptor."""

    @property
    def inherited(self) -> bool:
        """Whether this process was forked by the rank: what it says must not go this way."""
        return os.getpid() != self._pid

    def listen(self) -> None:
        """Start the thread that hears the kernel."""
        background.run(self._hear)

    def send(self, message: object, descriptor: int | None = None) -> None:
        """Send `message`, followed by an open file where one is given."""
        if self.inherited:
            return
        # Not by the connection's `send`: multiprocessing's pickler costs a new rank twice as much.
        letter = pickle.dumps(message)
        # Whole: a kernel that has read its beginning waits for the rest, and hears no other rank.
        with undisturbed(), self._sending:
            self._connection.send_bytes(letter)
            if descriptor is not None:
                reduction.send_handle(self._connection, descriptor, os.getppid())

    def _hear(self) -> None:
        while True:
            try:
                message = self._connection.recv()
                shared = getattr(message, "shared", 0)
                files = [reduction.recv_handle(self._connection)] if shared else []
            except (EOFError, OSError):  # the kernel is gone: so is this rank, with its children
                os.killpg(0, signal.SIGKILL)
                return
            handler = self.handlers.get(type(message))
            if handler is not None:
                handler(message, *files)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold an interrupt back until what is inside is done; whoever handles interrupts gets it then.

    A lock is taken within it, not around it: the user's handler may draw, too.

    To block the signal would not do: it is blocked in one thread, another thread takes it, and
    Python has the handler run in the main one all the same. The others are never interrupted.
    """
    theirs = signal.getsignal(signal.SIGINT)
    # Not by `current_thread`, which keeps an object for a thread that it does not know.
    if threading.get_ident() != threading.main_thread().ident or not callable(theirs):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *call: came.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, theirs)
        if came:
            theirs(*came[0])
