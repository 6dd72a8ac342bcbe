"""The connections between the processes of a run, found from outside."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Sockets = tuple[tuple[int, int], ...]


def between(
    pids: Mapping[int, int | None], chosen: Sequence[int], store_port: int
) -> dict[int, Sockets]:
    """Return the sockets of the chosen ranks that lead to other ranks or to the store.

    Parameters
    ----------
    pids
        The process of every rank that is alive.
    chosen
        The ranks whose sockets are wanted.
    store_port
        Port of the rendezvous store.

    Returns
    -------
    dict
        For each chosen rank its `(descriptor, port of the other end)`.
    """
    found = {rank: _connections(pid) for rank, pid in pids.items() if pid is not None}
    theirs = {(rank, ours) for rank, sockets in found.items() for _, ours, _ in sockets}
    return {
        rank: tuple(
            (descriptor, far)
            for descriptor, _, far in found.get(rank, ())
            if far == store_port or any((other, far) in theirs for other in found if other != rank)
        )
        for rank in chosen
    }


def _connections(pid: int) -> list[tuple[int, int, int]]:
    """Return descriptor, own port and far port of a process's connections."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        # psutil 5 has the older name.
        listing = getattr(process, "net_connections", None) or process.connections
        return [(c.fd, c.laddr.port, c.raddr.port) for c in listing("tcp") if c.raddr]
    return []
