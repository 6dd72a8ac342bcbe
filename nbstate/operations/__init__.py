"""Collectives over nested structures, and over any objects."""

from nbstate.operations.checks import DistributedOperationException
from nbstate.operations.collectives import (
    broadcast,
    broadcast_object_list,
    gather,
    gather_in_order,
    gather_object,
    pad_across_processes,
    reduce,
    send_to_device,
)

__all__ = [
    "DistributedOperationException",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_in_order",
    "gather_object",
    "pad_across_processes",
    "reduce",
    "send_to_device",
]
