"""How many ranks a launch or a session would have, and whether they can be: before any exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbstate import devices
from nbstate.rank import bootstrap
from nbstate.start import xla

if TYPE_CHECKING:
    from nbstate.options import LaunchOptions

# What a function cannot have in the kernel. Options that only say how ranks are treated, such as
# `grace`, do not ask for one.
_NEED_A_RANK = (
    *("devices", "backend", "threads_per_rank"),
    *("timeout", "max_restarts", "trace", "log_dir"),
)


def check_not_in_a_rank() -> None:
    """Refuse to launch from inside a rank.

    Raises
    ------
    RuntimeError
        This process is a rank.
    """
    if bootstrap.current is not None:
        raise RuntimeError(
            f"this is rank {bootstrap.current.rank} of {bootstrap.current.world_size} of a run: "
            "a rank cannot launch ranks; return from the function first"
        )


def count_ranks(num_processes: object, options: LaunchOptions) -> int:
    """Return how many ranks are meant; without a number one per accelerator, or one.

    Raises
    ------
    TypeError, ValueError
        The number is none.
    """
    if num_processes is None:
        if options.devices is not None:
            return len(options.devices)
        return 1 if options.cpu else max(1, devices.count())
    hint = f"num_processes={num_processes!r}: expected a whole number of at least 1, or None"
    if isinstance(num_processes, bool) or not isinstance(num_processes, int):
        raise TypeError(hint)
    if num_processes < 1:
        raise ValueError(hint)
    return num_processes


def suits_the_kernel(ranks: int, options: LaunchOptions) -> bool:
    """Tell whether one process is meant that can be the kernel, where what it trains stays."""
    alone = ranks == 1 and not options.meets_others
    wanted_here = options.wait and not options.isolate
    return alone and wanted_here and not xla.needed(options)  # the kernel must never take the TPU


def needing_a_rank(options: LaunchOptions) -> list[str]:
    """Return which of the chosen options only a rank of its own can have."""
    defaults = type(options)
    return [name for name in _NEED_A_RANK if getattr(options, name) != getattr(defaults, name)]


def check_devices(ranks: int, options: LaunchOptions) -> None:
    """Check that there is an accelerator for each rank, where there are any and they are wanted.

    Raises
    ------
    ValueError
        There are too few, or one that is asked for is not there.
    """
    shared = options.cpu or options.oversubscribe
    if options.devices is None and (shared or ranks == 1):
        return
    there = devices.count()
    if options.devices is not None:
        if any(index >= there for index in options.devices):
            raise ValueError(
                f"devices={options.devices!r}: this machine has {_accelerators(there)}"
            )
        there = len(options.devices)
    if there and ranks > there and not shared:
        raise ValueError(
            f"num_processes={ranks} with {_accelerators(there)}: ask for {there} at most, "
            "or pass oversubscribe=True (ranks share devices) or cpu=True"
        )


def _accelerators(number: int) -> str:
    return "1 accelerator" if number == 1 else f"{number} accelerators"


def in_words(ranks: int, options: LaunchOptions) -> str:
    """Return what the ranks are and how many, such as ``2 CPU processes``."""
    kind = "cpu" if options.cpu else devices.kind()
    word = "process" if ranks == 1 else "processes"
    device = "CPU" if kind == "cpu" else kind.upper()
    return f"{ranks} {device} {word}"
