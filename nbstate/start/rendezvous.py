"""Where the ranks of one run meet: a store that the kernel holds on a port nobody else can take.

The socket is bound before any rank exists and handed to the store, so there is no moment in which
another program could take the port, and the store listens on that address only: a store that makes
its own socket listens on every interface of the machine.
"""

from __future__ import annotations

import errno
import functools
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from nbstate.start import limits

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # not in its __all__

STORE_TIMEOUT = timedelta(minutes=30)


class Rendezvous:
    """A bound socket first, a store on it once `open_store` is called.

    Parameters
    ----------
    address
        Address to listen on.
    port
        Port to listen on; None: any free one.

    Raises
    ------
    OSError
        The port is taken, or the address is none of this machine's. The message says by whom.
    """

    _libuv: ClassVar[bool] = True

    def __init__(self, address: str, port: int | None) -> None:
        self.address = address
        self._wanted = port
        self._store: TCPStore | None = None
        self._bind()

    def _bind(self) -> None:
        address, port = self.address, self._wanted
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((address, port or 0))
            # Listening now lets ranks connect, and wait, before the store has been made.
            self._socket.listen(1024)
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, _why(address, port, error)) from None
        self.port: int = self._socket.getsockname()[1]

    def open_store(self, world_size: int) -> TCPStore:
        """Serve the store, once the ranks are forked; from here on the socket is the store's.

        The store's thread looks up the name of whoever connects. A process forked in that moment
        would find the lock of the C library's resolver held for ever, and hang as it connects.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined] # not in its __all__

        # Without descriptors torch's store hangs: it cannot take the connections that wait for it.
        limits.try_descriptors(16 + 2 * world_size)
        with limits.as_os_errors():
            serve = functools.partial(
                TCPStore,
                self.address,
                self.port,
                world_size,
                is_master=True,
                timeout=STORE_TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=self._socket.detach(),
            )
            try:
                self._store = serve(use_libuv=Rendezvous._libuv)
            except NotImplementedError:  # torch 2.4: its faster server takes no socket
                Rendezvous._libuv = False  # and says so on stderr, each time it is asked to
                self._store = serve(use_libuv=False)
        return self._store

    def renew(self) -> None:
        """Be as before the store was opened: who meets next must not find what ranks left."""
        self.close()
        self._bind()

    def close(self) -> None:
        """Stop serving, and free the port."""
        self._store = None
        self._socket.close()


def _why(address: str, port: int | None, error: OSError) -> str:
    if port and error.errno == errno.EADDRINUSE:
        return (
            f"use_port={port} on {address}: {error.strerror}{holder(port)}; "
            "leave use_port out and a free port is taken"
        )
    return f"master_addr={address!r}: {error.strerror}; one machine needs no master_addr"


def holder(port: int) -> str:
    """Say which process has a port, as an addition to a sentence, as far as it can be told."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" (held by {psutil.Process(connection.pid).name()}, pid {connection.pid})"
    except psutil.Error:
        pass
    return ""
