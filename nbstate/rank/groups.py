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

from nbstate.rank import torchlog

if TYPE_CHECKING:
    from collections.abc import Iterable


_kernels: list[Any] = []
"""Groups of the kernel: never taken apart here, for their threads are not in this process."""


def leave_the_kernels() -> None:
    """A forked rank belongs to no group that the kernel is in: that process is another."""
    if _default_group() is None:
        return
    c10d = _c10d()
    world = c10d._world
    _kernels.extend(world.pg_map)
    c10d._update_default_pg(None)
    for name in (
        *("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config"),
        *("pg_to_tag", "tags_to_pg", "pg_coalesce_state"),
    ):
        getattr(world, name).clear()
    c10d._unregister_all_process_groups()
    world.group_count = 0


def cut(sockets: Iterable[tuple[int, int]]) -> None:
    """Shut down the sockets that still lead to the ports that they led to.

    What torch tells of that on stderr, stacks of C++, is nobody's business, until the next task.
    """
    torchlog.hush()
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


def is_there() -> bool:
    """Tell whether this rank has a default group."""
    return _default_group() is not None


def renew(port: int, *, join: bool) -> None:
    """Drop what this rank has of groups; with `join` all ranks make the default group anew.

    Parameters
    ----------
    port
        Of a new store: older groups have left addresses in the one before.
    join
        Every rank has the default group.
    """
    os.environ["MASTER_PORT"] = str(port)
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    import torch.distributed as dist

    found: dict[str, Any] = {}
    if is_there():
        found = {"backend": dist.get_backend(), "rank": dist.get_rank()} | _chosen_options()
        dist.destroy_process_group()
    _c10d()._world.group_count = 0  # a group that came to nothing was counted on this rank only
    if join:
        world_size = int(os.environ["WORLD_SIZE"])
        found["store"] = _store(port, world_size)
        dist.init_process_group(world_size=world_size, **found)


def _chosen_options() -> dict[str, Any]:
    from nbstate.state import PartialState

    return PartialState()._facts.options if PartialState.is_initialized() else {}


def _store(port: int, world_size: int) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # not in its __all__

    return TCPStore(os.environ["MASTER_ADDR"], port, world_size, is_master=False)


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _default_group() -> Any:
    if "torch.distributed.distributed_c10d" not in sys.modules or not _c10d().is_initialized():
        return None
    return _c10d()._get_default_group()
