"""Which of how many processes this one is, read from the environment alone.

Spoken are the dialect of launched ranks and torchrun (``RANK``, ``WORLD_SIZE``, ...) and those of
MPI's launchers (Open MPI, MVAPICH2, Hydra and Intel MPI). Nothing here makes or changes anything.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among its peers."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    # None where several machines do not say how many processes this one has.
    local_world_size: int | None = 1
    # Whether MASTER_ADDR and MASTER_PORT say where the peers meet.
    rendezvous: bool = False
    mpi: bool = False


class _Dialect(NamedTuple):
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_TORCHRUN = _Dialect("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPI = (
    _Dialect(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Dialect(
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Dialect("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def find_place(
    environ: Mapping[str, str] = os.environ, *, meets_elsewhere: bool = False
) -> Place | None:
    """The place of this process, or None where the environment speaks of no peers.

    Parameters
    ----------
    environ : mapping
        The environment to read.
    meets_elsewhere : bool
        The peers need no ``MASTER_ADDR``: MPI's own backend, a given ``init_method`` or ``store``.

    Raises
    ------
    ValueError
        Variables are half set or contradict each other; all of them are listed.
    """
    dialect = _spoken(environ)
    if dialect is None:
        return None
    wrong: list[str] = []
    values = _numbers(dialect, environ, wrong)
    rank, world, local, local_world = (values.get(name) for name in dialect)
    _compare(dialect, values, environ, wrong)
    meeting = [name for name in ("MASTER_ADDR", "MASTER_PORT") if environ.get(name)]
    if (world or 1) > 1 and len(meeting) < 2 and not meets_elsewhere:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in meeting]
        wrong.append(f"{dialect.world_size}={world} without {' and '.join(missing)}")
    if local_world is None and _one_machine(world, environ):
        local_world = world
    if local is None and local_world == world:
        local = rank
    if local is None and rank is not None and world is not None:
        wrong.append(
            f"several machines (MASTER_ADDR={environ.get('MASTER_ADDR')}) "
            f"without {dialect.local_rank}"
        )
    if wrong or rank is None or world is None or local is None:
        raise ValueError(
            "the environment does not say clearly which process this is: "
            + "; ".join(wrong)
            + ". Set what is missing, or unset all of these to run as one process."
        )
    mpi = dialect is not _TORCHRUN
    return Place(rank, world, local, local_world, rendezvous=len(meeting) == 2, mpi=mpi)


def glance(environ: Mapping[str, str] = os.environ) -> Place:
    """The place as far as the environment tells, one process otherwise; never raises."""
    dialect = _spoken(environ)
    if dialect is None:
        return Place()
    values = _numbers(dialect, environ, [])
    rank = values.get(dialect.rank, 0)
    world = max(values.get(dialect.world_size, 1), rank + 1)
    local = values.get(dialect.local_rank, rank)
    return Place(rank, world, local, values.get(dialect.local_world_size))


def _spoken(environ: Mapping[str, str]) -> _Dialect | None:
    for dialect in (_TORCHRUN, *_MPI):
        if environ.get(dialect.rank) or environ.get(dialect.world_size):
            return dialect
    return None


def _numbers(dialect: _Dialect, environ: Mapping[str, str], wrong: list[str]) -> dict[str, int]:
    values: dict[str, int] = {}
    for name in dialect:
        text = environ.get(name, "").strip()
        if text.isdecimal():
            values[name] = int(text)
        elif text:
            wrong.append(f"{name}={text!r} is no number from 0 up")
    return values


def _compare(
    dialect: _Dialect, values: dict[str, int], environ: Mapping[str, str], wrong: list[str]
) -> None:
    ours, theirs, local, local_world = dialect
    for name, other in ((ours, theirs), (theirs, ours)):
        if environ.get(name) and not environ.get(other):
            wrong.append(f"{name}={environ[name]} without {other}")
    for index, size in ((ours, theirs), (local, local_world)):
        if index in values and size in values and values[index] >= values[size]:
            wrong.append(f"{index}={values[index]} is not below {size}={values[size]}")
    if {theirs, local_world} <= values.keys() and values[local_world] > values[theirs]:
        wrong.append(f"{local_world}={values[local_world]} is above {theirs}={values[theirs]}")


def _one_machine(world_size: int | None, environ: Mapping[str, str]) -> bool:
    """Whether all processes are on this machine, as far as it can be told."""
    if machines := environ.get("GROUP_WORLD_SIZE"):
        return machines == "1"
    address = environ.get("MASTER_ADDR") or "localhost"
    here = address.startswith("127.") or address in {"localhost", "::1", socket.gethostname()}
    return world_size == 1 or here
