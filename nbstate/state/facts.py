"""What is true of one process: the facts behind PartialState, and what they allow."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from nbstate import devices
from nbstate.state import process_group, xla
from nbstate.state.kinds import DistributedType
from nbstate.state.sending import dumps, loads, outcome_dumps
from nbstate.state.waiting import RoundWaiting, StoreWaiting, Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbstate.state.place import Place
    from nbstate.state.rank_only import Outcome
    from nbstate.state.splitting import Split


@dataclass
class ProcessFacts:
    """What one process knows of itself and its peers."""

    place: Place
    kind: str = "cpu"
    index: int | None = None
    launched_type: DistributedType = DistributedType.NO
    backend: str | None = None
    mixed_precision: str = "no"
    debug: bool = False
    # What the process group was asked for, to tell a later wish that differs.
    options: dict[str, Any] = field(default_factory=dict)
    # What AcceleratorState's plugin made of the run.
    planned_type: DistributedType | None = None
    splits: list[Split] = field(default_factory=list)
    # Whether this rank is in a block that the others wait for.
    goes_first: bool = False

    @property
    def distributed_type(self) -> DistributedType:
        return self.planned_type or self.launched_type

    @property
    def device(self) -> torch.device:
        if self.kind == "xla":
            device: torch.device = xla.device()
            return device
        return (
            torch.device(self.kind) if self.index is None else torch.device(self.kind, self.index)
        )

    @property
    def fork_launched(self) -> bool:
        return os.environ.get("FORK_LAUNCHED") == "1"

    def set_device(self) -> None:
        runtime = getattr(torch, self.kind, None)
        if self.index is not None and runtime is not None:
            runtime.set_device(self.index)

    def speaker(self, whose: str, index: int = 0) -> int:
        """The global rank that is meant, seen from this process."""
        place = self.place
        last = place.world_size - 1
        if place.world_size == 1:
            return place.rank
        if whose == "last":
            return last
        if whose in ("main", "local_main") and self.distributed_type is DistributedType.MEGATRON_LM:
            return last
        first = place.rank - place.local_rank if whose.startswith("local") else 0
        return first + index

    def peers(self, whose: str) -> int | None:
        """How many others wait for that speaker; None where it cannot be told."""
        place = self.place
        size = place.local_world_size if whose.startswith("local") else place.world_size
        return None if size is None else size - 1

    def waiting(self) -> Waiting:
        """How this process waits for its peers."""
        store = None if self.kind == "xla" else process_group.store()
        if store is None:
            return RoundWaiting(self._exchange_bytes)
        return StoreWaiting(store, self.place.rank, self.place.world_size)

    def wait_for_everyone(self, timeout: float | timedelta | None) -> None:
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        if self.place.world_size > 1:
            self._check_met("wait_for_everyone")
            self.waiting().for_everyone(timeout)

    @contextmanager
    def first(self, whose: str) -> Iterator[None]:
        """Run the block on the speaker, then, unless it failed, on the others."""
        speaker = self.speaker(whose)
        if self.place.world_size == 1:
            yield
        elif speaker == self.place.rank:
            with self._releasing(whose):
                yield
        else:
            word = self.waiting().await_word(f"{whose}/{speaker}", speaker, self.peers(whose))
            if word:
                raise RuntimeError(f"rank {speaker} went first and failed: {word}")
            yield

    @contextmanager
    def _releasing(self, whose: str) -> Iterator[None]:
        """Let the others go on when the block is left, telling them of an exception."""
        word = ""
        outer, self.goes_first = self.goes_first, True
        try:
            yield
        except BaseException as error:
            word = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.goes_first = outer
            self.waiting().leave_word(f"{whose}/{self.place.rank}", word, self.peers(whose))

    def _check_met(self, what: str) -> None:
        """Refuse to wait for ranks that wait for this one."""
        if self.goes_first:
            raise RuntimeError(
                f"{what} inside main_process_first or local_main_process_first would never end: "
                f"the other ranks wait for rank {self.place.rank} to leave that block"
            )

    def share(self, outcome: Outcome | None, whose: str, index: int) -> Any:
        """The speaker's outcome as every rank's own; None stands for a rank that did not speak.

        Waits without limit for the speaker, then sends the outcome by a collective.
        """
        speaker = self.speaker(whose, index)
        if not 0 <= speaker < self.place.world_size:
            raise ValueError(
                f"there is no rank {speaker} to share from: {self.place.world_size} in all"
            )
        if self.place.world_size > 1:
            self._check_met("share=True")
            name, peers = f"share/{whose}/{speaker}", self.peers(whose)
            if outcome is None:
                self.waiting().await_word(name, speaker, peers)
            else:
                self.waiting().leave_word(name, "", peers)
            sent = self._exchange_bytes(b"" if outcome is None else outcome_dumps(outcome))
            if outcome is None:
                outcome = loads(sent[speaker], self.device)
        assert outcome is not None
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def tell_everyone(self, text: str, doing: str) -> list[str]:
        """Every rank's text, in the order of ranks; a rank that waits alone says what it is doing.

        Raises
        ------
        TimeoutError
            A rank did not come within the group's timeout.
        """
        self._check_met("a collective")
        return self.waiting().tell_everyone(text, doing, self.timeout)

    @property
    def timeout(self) -> float:
        """Seconds that a collective may take."""
        given: timedelta = self.options.get("timeout", process_group.default_timeout())
        return given.total_seconds()

    def exchange(self, value: object) -> list[Any]:
        """Every rank's object, in the order of ranks; tensors lie on a device of this rank."""
        if self.place.world_size == 1:
            return [value]
        self._check_met("a collective")
        sent = self._exchange_bytes(dumps(value))
        return [loads(each, self.device) for each in sent]

    def _exchange_bytes(self, payload: bytes = b"") -> list[bytes]:
        if self.kind == "xla":
            return xla.exchange("nbstate", payload)
        return process_group.exchange(payload)


def offered_kind() -> str:
    """The kind of device that this machine offers first, as torch names it."""
    return "xla" if xla.in_use() else devices.kind()
