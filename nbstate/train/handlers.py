"""The plugins that come as `kwargs_handlers`, sorted by kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbstate.plugins import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    Plugin,
    adopt,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS: dict[str, type[Plugin]] = {
    "autocast": AutocastKwargs,
    "scaler": GradScalerKwargs,
    "ddp": DistributedDataParallelKwargs,
    "process_group": InitProcessGroupKwargs,
}


@dataclass
class Handlers:
    """At most one plugin of each kind."""

    autocast: AutocastKwargs | None = None
    scaler: GradScalerKwargs | None = None
    ddp: DistributedDataParallelKwargs | None = None
    process_group: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def sorted(cls, given: Sequence[Any]) -> Handlers:
        """The plugins of a list, each in its place.

        Raises
        ------
        TypeError
            One is of no kind that belongs here.
        ValueError
            Two are of one kind.
        """
        found: dict[str, Any] = {}
        for each in given:
            name = next(
                (n for n, kind in _KINDS.items() if kind.__name__ == type(each).__name__), ""
            )
            if not name:
                allowed = ", ".join(kind.__name__ for kind in _KINDS.values())
                raise TypeError(f"kwargs_handlers takes {allowed}, not {each!r}")
            if name in found:
                raise ValueError(f"kwargs_handlers has more than one {_KINDS[name].__name__}")
            found[name] = adopt(_KINDS[name], each, "kwargs_handlers")
        if "process_group" in found:
            found["process_group"] = found["process_group"].to_kwargs()
        return cls(**found)
