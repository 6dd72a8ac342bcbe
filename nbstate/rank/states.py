"""The states of a rank as text, told when an inspector asks. Asking makes no state."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from nbstate.wire import Inspect, Inspected

if TYPE_CHECKING:
    from nbstate.rank.channel import Channel

HOMES = {
    "PartialState": "nbstate.state.partial",
    "AcceleratorState": "nbstate.state.accelerator",
    "GradientState": "nbstate.state.gradient",
}


def install(channel: Channel) -> None:
    """Answer inspectors."""
    channel.handlers[Inspect] = lambda _: channel.send(Inspected(snapshot()))


def forget_accelerates() -> None:
    """Have Accelerate's own states, where the kernel has made them, be made anew in this rank."""
    theirs: Any = sys.modules.get("accelerate.state")
    if theirs is not None:
        theirs.AcceleratorState._reset_state(reset_partial_state=True)
        theirs.GradientState._reset_state()


def leave() -> None:
    """The function has returned: nobody need wait for this rank any more."""
    home: Any = sys.modules.get(HOMES["PartialState"])
    if home is not None and home.PartialState.is_initialized():
        with contextlib.suppress(Exception):  # the store may be gone, with another node
            home.here().waiting().leave()


def snapshot() -> dict[str, dict[str, str]]:
    """Return the facts of each state that there is; Accelerate's where a rank uses that one."""
    theirs: Any = sys.modules.get("accelerate.state")
    found = {}
    for name, home in HOMES.items():
        ours: Any = getattr(sys.modules.get(home), name, None)  # looking loads nothing
        if ours is not None and ours.is_initialized():
            found[name] = {label: str(value) for label, value in ours()._lines()}
        elif theirs is not None and getattr(theirs, name)._shared_state:
            shared = getattr(theirs, name)._shared_state
            found[f"{name} (Accelerate)"] = {
                key.strip("_").replace("_", " "): str(value)
                for key, value in shared.items()
                if value is not None and isinstance(value, (str, int, float, bool))
            }
    return found
