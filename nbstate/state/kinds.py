"""The words that states are told and tell: kinds of distribution and precisions."""

from __future__ import annotations

from enum import Enum


class DistributedType(str, Enum):
    """How a run is spread over processes; compares equal to its value, which is Accelerate's.

    Examples
    --------
    >>> DistributedType.MULTI_GPU == "MULTI_GPU"
    True
    """

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"
    XLA = "XLA"
    FSDP = "FSDP"
    TP = "TP"
    DEEPSPEED = "DEEPSPEED"
    MEGATRON_LM = "MEGATRON_LM"

    def __str__(self) -> str:
        return f"DistributedType.{self.name}"


PRECISIONS = ("no", "fp16", "bf16", "fp8")


def checked_precision(precision: str, source: str) -> str:
    """The precision in lower case; ValueError where it is none of `PRECISIONS`."""
    lowered = str(precision).lower()
    if lowered not in PRECISIONS:
        choices = ", ".join(map(repr, PRECISIONS))
        raise ValueError(f"{source}={precision!r} is not a precision; choose one of {choices}")
    return lowered
