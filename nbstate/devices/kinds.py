"""The kinds of accelerators: when torch can use one, how many there are, what limits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbstate.devices import nvml

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbstate.devices.machine import Machine

_GOOGLE, _INTEL = "0x1ae0", "0x8086"


@dataclass(frozen=True)
class Kind:
    """One kind of accelerator.

    Parameters
    ----------
    name : str
        As torch calls the device; 'tpu' for what torch_xla drives.
    build : str
        What torch must be built for, or the package that must be installed.
    identities : callable
        The devices of a machine by what selects them, all of them: indices as text, or UUIDs.
    variables : tuple of str
        The environment variables that limit a process to some of them, the strongest first.
    """

    name: str
    build: str
    identities: Callable[[Machine], list[str]]
    variables: tuple[str, ...] = ()


def _numbered(count: int) -> list[str]:
    return [str(index) for index in range(count)]


def _cuda(machine: Machine) -> list[str]:
    known = nvml.uuids() if machine.nvml else None
    if known is not None:
        return known
    devices = machine.files("dev/nvidia[0-9]*")
    # Under WSL there are no device files, and as a rule one device.
    return _numbered(len(devices or machine.files("usr/lib/wsl/lib/libcuda.so.1")))


def _rocm(machine: Machine) -> list[str]:
    nodes = machine.texts("sys/class/kfd/kfd/topology/nodes/*/properties")
    # The processors of the machine are nodes too; they have no SIMD units.
    return _numbered(sum("simd_count" in node and "simd_count 0" not in node for node in nodes))


def _xpu(machine: Machine) -> list[str]:
    vendors = machine.texts("sys/class/drm/renderD*/device/vendor")
    return _numbered(vendors.count(_INTEL))


def _npu(machine: Machine) -> list[str]:
    return _numbered(len(machine.files("dev/davinci[0-9]*")))


def _hpu(machine: Machine) -> list[str]:
    return _numbered(len(machine.files("dev/accel/accel[0-9]*") or machine.files("dev/hl[0-9]*")))


def _tpu(machine: Machine) -> list[str]:
    chips = len(machine.files("dev/accel[0-9]*"))
    if not chips and (
        _version(machine) or _GOOGLE in machine.texts("sys/bus/pci/devices/*/vendor")
    ):
        chips = len(machine.files("dev/vfio/[0-9]*"))  # newer ones are handed on through VFIO
    return _numbered(chips * cores_per_chip(machine))


def cores_per_chip(machine: Machine) -> int:
    """How many cores a chip of the machine's TPU has: two in its second and third generation."""
    version = _version(machine)
    old = version.startswith(("v2", "v3")) or (not version and _old_chips(machine))
    return 2 if old else 1


def _version(machine: Machine) -> str:
    return (machine.variable("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE") or "").lower()


def _old_chips(machine: Machine) -> bool:
    return "0x0027" in machine.texts("sys/bus/pci/devices/*/device")


def _mps(machine: Machine) -> list[str]:
    return _numbered(machine.platform == "darwin")


# The first that torch can use and the machine has is the kind of the machine.
KINDS = (
    Kind("tpu", "torch_xla", _tpu, ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")),
    Kind("cuda", "cuda", _cuda, ("CUDA_VISIBLE_DEVICES",)),
    Kind(
        "cuda",
        "hip",
        _rocm,
        ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    ),
    Kind("xpu", "xpu", _xpu, ("ZE_AFFINITY_MASK",)),
    Kind("npu", "torch_npu", _npu, ("ASCEND_RT_VISIBLE_DEVICES",)),
    Kind("hpu", "habana_frameworks", _hpu, ("HABANA_VISIBLE_MODULES",)),
    Kind("mps", "mps", _mps),
)


def selected(everything: list[str], variable: str | None) -> list[str]:
    """The devices that a list such as ``0,2``, ``GPU-8932f937`` or ``MIG-...`` leaves.

    As CUDA reads it: what comes after the first entry that is no device is not seen, and a list
    that repeats itself selects nothing.

    Parameters
    ----------
    everything : list of str
        All devices: UUIDs, or indices as text.
    variable : str or None
        The list; None selects everything.
    """
    if variable is None:
        return everything
    entries: list[str] = []
    for entry in (part.strip() for part in variable.split(",")):
        if not _is_device(entry, everything):
            break
        entries.append(entry)
    return entries if len(set(entries)) == len(entries) else []


def _is_device(entry: str, everything: list[str]) -> bool:
    index = entry.partition(".")[0]  # Intel's list may name a tile: 0.1
    if index.isdecimal():
        return int(index) < len(everything)
    if entry.startswith("MIG-"):
        return bool(everything)  # a slice of a device has an identifier of its own
    by_uuid = [known for known in everything if not known.isdecimal()]
    # Where identifiers are not known the one given is believed.
    return entry.startswith("GPU-") and (
        any(known.startswith(entry) for known in by_uuid) if by_uuid else bool(everything)
    )
