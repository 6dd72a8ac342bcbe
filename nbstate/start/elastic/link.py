"""A connection between the kernels of two nodes: whole messages, and word when the other is gone.

That a kernel or its machine is gone is told by the connection itself: a process that ends closes
it, and where a machine or a cable fails the system's own probes notice (SO_KEEPALIVE, tcp(7)).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from nbstate.start.elastic.messages import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbstate.start.elastic.messages import Message

SEND_TIMEOUT = 10.0
"""Seconds in which the other side must take a piece of what is sent."""

_HEAD = struct.Struct("!IQ")
_PIECE = 1 << 20
_STRANGERS_MOST = 1 << 16


class Link:
    """One end of a connection to another kernel.

    Parameters
    ----------
    connected
        The socket; it is closed with the link.
    interval, attempts
        Seconds between two probes of a silent connection, and how many in vain mean that the other
        side is gone.
    """

    def __init__(self, connected: socket.socket, interval: float, attempts: int) -> None:
        self._socket = connected
        self._socket.settimeout(SEND_TIMEOUT)
        self._data = bytearray()
        self.trusted = False
        if connected.family != socket.AF_UNIX:
            _probe(connected, max(1, round(interval)), attempts)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def here(self) -> str:
        """The address of this node, as the other side reaches it."""
        return str(self._socket.getsockname()[0])

    @property
    def there(self) -> str:
        """The other node's address."""
        return str(self._socket.getpeername()[0])

    def send(self, message: Message, blob: bytes = b"") -> None:
        """Send a message, and bytes beside it. One that is gone hears nothing: `receive` tells."""
        head = encode(message)
        data = memoryview(_HEAD.pack(len(head), len(blob)) + head + blob)
        try:
            while data:  # in pieces: the time limit is for each of them
                self._socket.sendall(data[:_PIECE])
                data = data[_PIECE:]
        except OSError:
            with contextlib.suppress(OSError):  # it is gone already
                self._socket.shutdown(socket.SHUT_RDWR)

    def receive(self) -> Iterator[tuple[Message, bytes]]:
        """Read what has arrived, which must be something, and yield the messages that are whole.

        Raises
        ------
        ConnectionError
            The other side is gone.
        ValueError
            It speaks another language.
        """
        try:
            data = self._socket.recv(_PIECE)
        except OSError as error:
            raise ConnectionError(error.strerror) from None
        if not data:
            raise ConnectionError("it has closed the connection")
        self._data += data
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> tuple[Message, bytes] | None:
        if len(self._data) < _HEAD.size:
            return None
        length, more = _HEAD.unpack_from(self._data)
        if not self.trusted and length + more > _STRANGERS_MOST:
            raise ValueError("not a message of a node: too long")
        start, end = _HEAD.size + length, _HEAD.size + length + more
        if len(self._data) < end:
            return None
        head, blob = bytes(self._data[_HEAD.size : start]), bytes(self._data[start:end])
        del self._data[:end]
        return decode(head), blob

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _probe(connected: socket.socket, interval: int, attempts: int) -> None:
    wanted = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": interval,
        "TCP_KEEPALIVE": interval,  # the same on macOS
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": attempts,
        "TCP_USER_TIMEOUT": 1000 * interval * (attempts + 1),  # for what was sent, Linux
    }
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in wanted.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
