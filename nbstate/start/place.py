"""What a rank's environment says of its place, in torchrun's variables: any library knows them."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from nbstate import cgroups, devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbstate.options import LaunchOptions

# What a launched process may find, and nobody else: the kernel's own values never reach a rank.
PLACE_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)

MARK = "NBSTATE_RUN"
"""Holds, in all that the ranks of a run start, what that run is called; no two are called alike."""

ROLE = "default"
"""What torchrun calls a group of equal workers unless told otherwise."""


@dataclass(frozen=True)
class Place:
    """Where one rank of a run is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    nodes: int
    address: str
    port: int
    here: str
    run_id: str
    restarts: int


def environment(
    place: Place, options: LaunchOptions, error_file: str, threads: int | None
) -> dict[str, str]:
    """Return the variables of one rank, on top of what it inherits from the kernel."""
    found = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "ROLE_RANK": str(place.rank),
        "GROUP_RANK": str(place.node),
        "ROLE_NAME": ROLE,
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
        "TORCHELASTIC_RUN_ID": place.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "FORK_LAUNCHED": "1",
        "ACCELERATE_MIXED_PRECISION": options.mixed_precision,
        **_unless_set("TOKENIZERS_PARALLELISM", "false"),
        **_interface(place.here),
        **_device_settings(place.local_rank, options),
    }
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    return {**found, **options.env}


def threads_per_rank(ranks: int, options: LaunchOptions) -> int | None:
    """Return the threads for torch's operators in one rank; None: as the user has set them."""
    if options.threads_per_rank is not None:
        return options.threads_per_rank
    if "OMP_NUM_THREADS" in os.environ or "OMP_NUM_THREADS" in options.env:
        return None
    return max(1, int(usable_cores()) // ranks)


def usable_cores() -> float:
    """Return how many cores this process may use, after its affinity and its cgroup's quota."""
    try:
        cores: float = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = psutil.cpu_count() or 1
    return min([cores, *_quotas()])


def _quotas() -> Iterator[float]:
    """Yield how many cores' time each control group of this process may use."""
    for group in cgroups.groups("cpu"):
        quota = cgroups.number(group / "cpu.cfs_quota_us")
        period = cgroups.number(group / "cpu.cfs_period_us")
        if quota is None:
            with contextlib.suppress(OSError, ValueError):  # there is none, or it is "max"
                quota, period = map(int, (group / "cpu.max").read_text(encoding="ascii").split())
        if quota is not None and quota > 0 and period:
            yield quota / period


def _unless_set(name: str, value: str) -> dict[str, str]:
    return {} if name in os.environ else {name: value}


def _interface(address: str) -> dict[str, str]:
    """Have ranks talk through the interface of this address, never through the host's name."""
    interface = _loopback(address) or _interface_of(address)
    if interface is None:
        return {}
    return {
        **_unless_set("GLOO_SOCKET_IFNAME", interface),
        **_unless_set("NCCL_SOCKET_IFNAME", interface),
    }


def _loopback(address: str) -> str | None:
    if not address.startswith("127.") and address not in ("localhost", "::1"):
        return None
    return "lo" if sys.platform == "linux" else "lo0"


def _interface_of(address: str) -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address.partition("%")[0] == address for found in addresses):
            return name
    return None


def _device_settings(local_rank: int, options: LaunchOptions) -> dict[str, str]:
    found: dict[str, str] = {}
    if options.backend is not None:
        found["NBSTATE_BACKEND"] = options.backend
    elif options.oversubscribe:
        found["NBSTATE_BACKEND"] = "gloo"
    if options.cpu:
        found["NBSTATE_CPU"] = "1"
    if options.cpu or devices.kind() == "cpu":
        found["ACCELERATE_USE_CPU"] = "true"
    if options.devices is not None:
        found.update(devices.visible(options.devices, local_rank))
    return found
