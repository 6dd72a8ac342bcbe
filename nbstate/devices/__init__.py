"""Accelerators counted and named without waking them.

A process that has opened a CUDA context cannot be forked into ranks that use CUDA, and a TPU lets
one process in. So nothing here asks a runtime: device files, environment variables, management
libraries and torch's build flags tell enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbstate.devices import nvml
from nbstate.devices.kinds import KINDS, Kind, cores_per_chip, selected
from nbstate.devices.machine import Machine
from nbstate.devices.woken import woken

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Machine",
    "count",
    "has_replicas_as_threads",
    "host",
    "kind",
    "name",
    "supports_fp8",
    "visible",
    "woken",
]


def kind(machine: Machine | None = None) -> str:
    """The kind of accelerator that torch can use: 'cuda', 'xpu', 'npu', 'hpu', 'mps' or 'tpu'.

    'cpu' where there is none. AMD's devices are 'cuda', as torch calls them.
    """
    found = _found(machine or Machine())
    return "cpu" if found is None else found[0].name


def count(machine: Machine | None = None) -> int:
    """How many accelerators this process may use, on a TPU its cores; 0 where there are none."""
    found = _found(machine or Machine())
    return 0 if found is None else len(found[1])


def has_replicas_as_threads(machine: Machine | None = None) -> bool:
    """Whether a process gets two cores of a TPU, each served by a thread: versions 2 and 3."""
    machine = machine or Machine()
    return kind(machine) == "tpu" and cores_per_chip(machine) > 1


def name(index: int = 0, machine: Machine | None = None) -> str:
    """What to call an accelerator: its product's name where NVML tells it, else its kind.

    Parameters
    ----------
    index : int
        Which of those that this process may use.
    machine : Machine, optional
        Where to look; None for the one this runs on.
    """
    machine = machine or Machine()
    product = nvml.name(_physical(machine, index)) if _is_nvidia(machine) else None
    return product or kind(machine).upper()


def visible(
    devices: Sequence[int], local_rank: int, machine: Machine | None = None
) -> dict[str, str]:
    """The environment variable that shows a rank its own accelerator and no other.

    Parameters
    ----------
    devices : sequence of int
        The accelerators to use, counted among those that this process may use.
    local_rank : int
        The rank on this machine; ranks beyond the number of devices share them.
    machine : Machine, optional
        Where to look; None for the one this runs on.

    Examples
    --------
    >>> visible([3, 5], 1)  # where there are CUDA devices: {'CUDA_VISIBLE_DEVICES': '5'}
    {}
    """
    found = _found(machine or Machine())
    if found is None or not found[0].variables:
        return {}
    of_kind, usable = found
    return {of_kind.variables[0]: usable[devices[local_rank % len(devices)]]}


def supports_fp8(kind: str, index: int = 0, machine: Machine | None = None) -> bool:
    """Whether a device computes in 8 bit floating point: CUDA from capability 8.9 on, and HPU.

    Where a CUDA device cannot be asked without waking it, it is taken to.
    """
    if kind != "cuda":
        return kind == "hpu"
    machine = machine or Machine()
    capability = nvml.capability(_physical(machine, index)) if _is_nvidia(machine) else None
    if capability is None and woken() == "CUDA":
        import torch

        capability = torch.cuda.get_device_capability(index)
    return capability is None or capability >= (8, 9)


# The services whose machines come ready made: a name, and a variable that each sets.
_HOSTS = (
    ("Kaggle", "KAGGLE_KERNEL_RUN_TYPE"),
    ("Colab", "COLAB_RELEASE_TAG"),
    ("Colab", "COLAB_GPU"),
)


def host(machine: Machine | None = None) -> str:
    """The kind of machine in words: 'Kaggle TPU', 'Colab GPU', 'Colab CPU', 'GPU', 'CPU', ..."""
    machine = machine or Machine()
    service = next((name for name, variable in _HOSTS if variable in machine.environ), "")
    device = {"tpu": "TPU", "cpu": "CPU"}.get(kind(machine), "GPU")
    return f"{service} {device}".strip()


def _found(machine: Machine) -> tuple[Kind, list[str]] | None:
    """The kind of accelerator, and what selects those that this process may use."""
    for of_kind in KINDS:
        if of_kind.build in machine.builds:
            everything = of_kind.identities(machine)
            usable = selected(everything, machine.variable(*of_kind.variables))
            if usable:
                return of_kind, _as_given(usable, everything, machine.variable(*of_kind.variables))
    return None


def _as_given(usable: list[str], everything: list[str], variable: str | None) -> list[str]:
    """Indices where the user speaks of indices or of nothing, identifiers where of those."""
    return [str(index) for index in range(len(everything))] if variable is None else usable


def _is_nvidia(machine: Machine) -> bool:
    return machine.nvml and kind(machine) == "cuda" and "cuda" in machine.builds


def _physical(machine: Machine, index: int) -> int:
    """The index that NVML knows a visible device by."""
    found = _found(machine)
    chosen = found[1][index] if found is not None and index < len(found[1]) else str(index)
    if chosen.isdecimal():
        return int(chosen)
    known = nvml.uuids() or []
    return next((at for at, uuid in enumerate(known) if uuid.startswith(chosen)), index)
