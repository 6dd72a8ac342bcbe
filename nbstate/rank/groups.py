"""Process groups of a rank that lives on: freed where they are stuck, and made anew.

A rank that waits in a collective of gloo is in C code that looks at no signal. Its connections to
the other ranks are shut down instead: the collective fails at once, and the interrupt that waits is
served. What is left of the groups is of no use to anybody, so all ranks make them anew.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def cut(sockets: Iterable[tuple[int, int]]) -> None:
    """Shut down the sockets that still lead to the ports that they led to."""
    for descriptor, port in sockets:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getpeername()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
    # Backends that have no sockets to be cut, NCCL above all, know how to give up.
    group = _default_group()
    if group is not None and _c10d().get_backend(group) != "gloo":
        with contextlib.suppress(Exception):
            group.abort()


def progress() -> dict[str, int]:
    """Return how many collectives of each group this rank has begun, by the group's name."""
    if _default_group() is None:
        return {}
    found = {}
    for group in _c10d()._world.pg_map:
        with contextlib.suppress(Exception):  # a backend that does not count
            found[group.group_name] = group._get_sequence_number_for_group()
    return found


def renew(epoch: str, *, join: bool) -> bool:
    """Make the default group anew where there is one; every rank does so at the same time.

    Parameters
    ----------
    epoch
        A name that no earlier call has had, the same on every rank.
    join
        All ranks are there, so that a new group can be made; else the old one is only dropped.

    Returns
    -------
    bool
        Whether there was a group.
    """
    if "nbstate.state" in sys.modules:
        from nbstate.state import waiting

        waiting.begin_epoch(epoch)
    if _default_group() is None:
        return False
    import torch.distributed as dist

    options: dict[str, Any] = {"backend": dist.get_backend()}
    rank, world_size = dist.get_rank(), dist.get_world_size()
    from nbstate.state import PartialState

    if PartialState.is_initialized():
        options |= PartialState()._facts.options
    dist.destroy_process_group()
    if join:
        options["store"] = _store(epoch, world_size)
        dist.init_process_group(rank=rank, world_size=world_size, **options)
    return True


def _store(epoch: str, world_size: int) -> Any:
    """Return the kernel's store, seen through a prefix: older groups have left addresses in it."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return PrefixStore(f"session-{epoch}", TCPStore(*place, world_size, is_master=False))


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _default_group() -> Any:
    if "torch.distributed.distributed_c10d" not in sys.modules or not _c10d().is_initialized():
        return None
    return _c10d()._get_default_group()
