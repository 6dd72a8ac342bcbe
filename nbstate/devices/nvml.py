"""NVIDIA's management library, which knows the devices without opening any of them.

Through the package ``nvidia-ml-py`` where it is installed; None stands for not knowing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def _library() -> Iterator[Any]:
    """The library between its start and its end, None where it is not to be had."""
    if importlib.util.find_spec("pynvml") is None:
        yield None
        return
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, or not allowed to ask it
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def uuids() -> list[str] | None:
    """The identifiers of all devices, in the order of their indices."""
    with _library() as nvml:
        if nvml is None:
            return None
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]


def name(index: int) -> str | None:
    """The product's name of a device."""
    with _library() as nvml:
        if nvml is None or index >= nvml.nvmlDeviceGetCount():
            return None
        return _text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index)))


def capability(index: int) -> tuple[int, int] | None:
    """The compute capability of a device."""
    with _library() as nvml:
        if nvml is None or index >= nvml.nvmlDeviceGetCount():
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return int(major), int(minor)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
