"""PartialState: which of how many processes this one is, and on which device."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from nbstate import devices
from nbstate.state import process_group, xla
from nbstate.state.control import ProcessControl
from nbstate.state.facts import ProcessFacts, offered_kind
from nbstate.state.kinds import DistributedType, checked_precision
from nbstate.state.life import SharedState, caller, end
from nbstate.state.place import Place, find_place, glance
from nbstate.state.scopes import scope

if TYPE_CHECKING:
    from collections.abc import Iterator

_TYPES = {
    "cpu": DistributedType.MULTI_CPU,
    "cuda": DistributedType.MULTI_GPU,
    "xpu": DistributedType.MULTI_XPU,
    "npu": DistributedType.MULTI_NPU,
    "hpu": DistributedType.MULTI_HPU,
}


class PartialState(SharedState[ProcessFacts], ProcessControl):
    """The rank, device and peers of this process; every object in a process shows the same.

    The first construction settles it. The place comes from an existing default process group, from
    the environment of a launched rank, of torchrun or of MPI, or from XLA's runtime; without any of
    these there is one process. A rank without a group makes it here.

    Parameters
    ----------
    cpu : bool
        Stay on the CPU whatever accelerators there are.
    **kwargs
        For `torch.distributed.init_process_group`: ``timeout``, ``backend``, ...

    Raises
    ------
    ValueError
        The environment contradicts itself (all variables in question are listed), the backend is
        not available, or the state exists with other settings.

    Examples
    --------
    >>> state = PartialState()
    >>> state.print(f"{state.num_processes} processes, this is {state.process_index}")
    1 processes, this is 0
    """

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        options = process_group.checked_options(kwargs)
        self._begin(
            lambda: _settle(cpu, dict(options)),
            lambda facts: _agree(facts, cpu, options),
        )

    @property
    def mixed_precision(self) -> str:
        """The precision that the launcher asked for: 'no', 'fp16', 'bf16' or 'fp8'."""
        return self._facts.mixed_precision

    @property
    def _process(self) -> ProcessFacts:
        return self._facts

    @classmethod
    def _here(cls) -> ProcessFacts:
        return here()

    @classmethod
    def _joined(cls) -> ProcessFacts:
        return PartialState()._facts

    @classmethod
    def _reset_state(cls) -> None:
        """Forget this state, and the AcceleratorState that stands on it."""
        standing = [each for each in scope().lives if issubclass(each, ProcessControl)]
        end(f"PartialState._reset_state() {caller()}", *standing)

    def _lines(self) -> Iterator[tuple[str, object]]:
        yield from lines(self._facts)
        yield "Mixed precision", self.mixed_precision


def lines(facts: ProcessFacts) -> Iterator[tuple[str, object]]:
    """One label and value for each fact."""
    yield "Distributed type", facts.distributed_type
    yield "Backend", facts.backend
    yield "Num processes", facts.place.world_size
    yield "Process index", facts.place.rank
    yield "Local process index", facts.place.local_rank
    # An XLA device is opened by asking for it, so it is not asked for here.
    yield "Device", "xla" if facts.kind == "xla" else facts.device
    if "timeout" in facts.options:
        yield "Timeout of collectives", facts.options["timeout"]


def here() -> ProcessFacts:
    """The facts of this process without making a state: as far as group and environment tell."""
    life = PartialState._current()
    if life is not None:
        return life.facts
    seen = glance()
    return ProcessFacts(_place_in_group(seen) if process_group.exists() else seen)


def is_main_process() -> bool:
    """Whether this process speaks for all; asking makes no state and never fails.

    Before a state is set up the environment of the launcher, of torchrun or of MPI answers; where
    there is none the process is alone and the answer is yes.

    Examples
    --------
    >>> debug_launcher(is_main_process)
    RankResults([True, False])
    """
    facts = here()
    return facts.speaker("main") == facts.place.rank


def _settle(cpu: bool, options: dict[str, Any]) -> ProcessFacts:
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION") or "no"
    asked = options.pop("backend", None)
    facts = ProcessFacts(
        Place(),
        "cpu" if cpu or os.environ.get("NBSTATE_CPU") == "1" else offered_kind(),
        mixed_precision=checked_precision(precision, "ACCELERATE_MIXED_PRECISION"),
    )
    if facts.kind == "xla":
        _settle_xla(facts)
    else:
        _settle_group(facts, asked, options)
    checks = os.environ.get("ACCELERATE_DEBUG_MODE", "").lower()
    by_default = facts.kind == "cpu" and facts.place.world_size > 1
    facts.debug = checks in {"1", "true", "yes", "on"} if checks else by_default
    return facts


def _settle_xla(facts: ProcessFacts) -> None:
    facts.launched_type = DistributedType.XLA
    place = xla.find_place()
    if place is not None:
        facts.place, facts.backend = place, "xla"


def _settle_group(facts: ProcessFacts, asked: str | None, options: dict[str, Any]) -> None:
    there_is_one = process_group.exists()
    if there_is_one:
        facts.place = _place_in_group(glance())
        facts.backend = process_group.backend()
    else:
        elsewhere = asked == "mpi" or "store" in options or "init_method" in options
        place = _given_place(options) or find_place(meets_elsewhere=elsewhere)
        if place is not None:
            facts.place = place
            if place.world_size > 1 or place.rendezvous:
                facts.backend = process_group.choose_backend(facts.kind, asked, mpi=place.mpi)
    if facts.kind == "mps" and facts.backend is not None:
        facts.kind = "cpu"  # one device, and no backend carries its tensors
    if facts.kind not in {"cpu", "mps"}:
        facts.index = facts.place.local_rank % max(devices.count(), 1)
    if facts.backend is None:
        return
    facts.launched_type = _TYPES.get(facts.kind, DistributedType.MULTI_GPU)
    facts.set_device()
    if there_is_one:
        _warn_of_no_effect(options)
    else:
        process_group.join(facts.place, facts.backend, options)
        facts.options = {**options, "backend": facts.backend}


def _warn_of_no_effect(options: dict[str, Any]) -> None:
    if options:
        told = ", ".join(f"{name}={value}" for name, value in options.items())
        warnings.warn(
            f"the process group was made before this PartialState and is used as it is: "
            f"{told} has no effect",
            stacklevel=2,
        )


def _given_place(options: dict[str, Any]) -> Place | None:
    """The place that the caller gave as ``rank`` and ``world_size``, as for init_process_group."""
    if not {"rank", "world_size"} <= options.keys():
        return None
    rank, world = options["rank"], options["world_size"]
    seen = glance()
    local = seen.local_rank if (seen.rank, seen.world_size) == (rank, world) else rank
    return Place(rank, world, local, seen.local_world_size, rendezvous=True)


def _place_in_group(seen: Place) -> Place:
    rank, world = process_group.rank_and_size()
    if (seen.rank, seen.world_size) == (rank, world):
        return seen
    return Place(rank, world, rank, world)


def _agree(facts: ProcessFacts, cpu: bool, options: dict[str, Any]) -> None:
    """ValueError where a later construction asks for something else than there is."""
    if cpu and facts.kind != "cpu":
        raise conflict("PartialState", "device", facts.device, "cpu")
    if not facts.options:  # one process, or a group that was made elsewhere
        return
    for name, asked in options.items():
        there_is = facts.options.get(name, "torch's default")
        if there_is != asked:
            raise ValueError(
                f"the process group was made with {name}={there_is}, and {name}={asked} was asked "
                f"for; give it to the first PartialState or AcceleratorState of the rank"
            )


def conflict(state: str, name: str, there_is: object, asked: object) -> ValueError:
    """The error for a wish that differs from the state that there is."""
    return ValueError(
        f"{state} is already set up with {name}={there_is}, and {name}={asked} was asked for; "
        f"leave it out to use what there is, or call {state}.reset() first"
    )
