"""torch's default process group: the one that there is, or one made from a place."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from nbstate.state.place import Place

_BACKENDS = {"cuda": "nccl", "xpu": "xccl", "npu": "hccl", "hpu": "hccl"}


def exists() -> bool:
    """Whether this process has a default process group."""
    return dist.is_available() and dist.is_initialized()


def rank_and_size() -> tuple[int, int]:
    """The rank in the group that there is, and its size."""
    return dist.get_rank(), dist.get_world_size()


def backend() -> str:
    """The name of the backend of the group that there is."""
    return str(dist.get_backend())


def choose_backend(kind: str, asked: str | None, *, mpi: bool = False) -> str:
    """The backend asked for, the launcher's, or the one that belongs to a kind of device."""
    chosen = asked or os.environ.get("NBSTATE_BACKEND")
    if chosen is not None:
        return checked_backend(chosen)
    usual = _BACKENDS.get(kind, "mpi" if mpi and dist.is_mpi_available() else "gloo")
    return usual if usual in available() else "gloo"


def checked_backend(chosen: str) -> str:
    """The backend in lower case; ValueError where this torch has none of that name."""
    # A composite such as "cpu:gloo,cuda:nccl" names one for each kind of tensor.
    for part in chosen.lower().split(","):
        if part.rpartition(":")[2] not in available():
            raise ValueError(
                f"backend={chosen!r} is not available in this torch; "
                f"there are {', '.join(map(repr, available()))}"
            )
    return chosen.lower()


def available() -> list[str]:
    """The names of the backends that this torch was built with or that were registered."""
    tests = {
        "gloo": dist.is_gloo_available,
        "nccl": dist.is_nccl_available,
        "mpi": dist.is_mpi_available,
        "ucc": dist.is_ucc_available,
        "xccl": getattr(dist, "is_xccl_available", lambda: False),
    }
    names = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    return sorted(name for name in names if tests.get(name, lambda: True)())


def join(place: Place, backend: str, options: dict[str, Any]) -> None:
    """Make the default process group; blocks until all peers have come, or the timeout is up."""
    if "store" not in options and backend != "mpi":
        options = {"init_method": "env://", **options}
    placing = {} if backend == "mpi" else {"rank": place.rank, "world_size": place.world_size}
    dist.init_process_group(backend, **{**placing, **options})


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for `init_process_group`, without those left at None."""
    options = {name: value for name, value in options.items() if value is not None}
    if "backend" in options:
        options["backend"] = checked_backend(options["backend"])
    timeout = options.get("timeout")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"timeout={timeout!r} must be a datetime.timedelta, "
                        f"such as timedelta(minutes=30)")  # fmt: skip
    return options


def default_timeout() -> timedelta:
    """How long a collective may take where nothing else was asked for."""
    return dist.distributed_c10d.default_pg_timeout


def store() -> Any:
    """The default group's key-value store, None where its backend has none (MPI)."""
    from torch.distributed import distributed_c10d

    if dist.get_backend() == "mpi":
        return None
    return distributed_c10d._get_default_store()


def exchange(value: object) -> list[Any]:
    """Every rank's object, in the order of ranks: a collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
