"""What a call is searched for before its ranks are started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbstate.baggage.parts import parts_of_call
from nbstate.baggage.scale import Scale

if TYPE_CHECKING:
    from nbstate.rank.call import Call

_LOOKS = 20_000
"""Objects looked at before a launch: some 20 ms at most."""


@dataclass(frozen=True)
class Findings:
    """What is tied to the kernel, by the names that the user gave it.

    Attributes
    ----------
    handles
        What is open, such as ``args[0].log (open file 'run.log')``.
    on_devices
        Arguments and variables with tensors that are not on the CPU.
    """

    handles: list[str]
    on_devices: list[str]


def search(call: Call) -> Findings:
    """Search the arguments of a call and what its function drags along."""
    scale = Scale(_LOOKS)
    weights = [(name, scale.weigh(value)) for name, value in parts_of_call(call)]
    return Findings(
        [f"{name}{path} ({what})" for name, weight in weights for path, what in weight.handles],
        [name for name, weight in weights if weight.devices],
    )
