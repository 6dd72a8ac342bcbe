"""Traced collectives: each is announced to the kernel, which compares the ranks, before it begins.

The methods of torch's process groups are wrapped, not its functions: a notebook may have imported
those by name long before, and FSDP and others call them by ways of their own. What is called in C++
comes here by `nbstate.rank.reducer` from DistributedDataParallel, and by `nbstate.rank.functional`
from torch's functional collectives, which tensor parallel layers use.
"""

from __future__ import annotations

import functools
import queue
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from nbstate.rank import collectives
from nbstate.wire import Announced, Verdict, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbstate.rank.channel import Channel

# Each method, and which of its arguments has the same type and shape on every rank, if any.
METHODS: dict[str, int | None] = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "broadcast": 0,
    "reduce": 0,
    "allgather": 1,
    "_allgather_base": 1,
    "all_gather_single": 1,
    "allgather_coalesced": 1,
    "allgather_into_tensor_coalesced": 1,
    "gather": 1,
    "scatter": 0,
    "reduce_scatter": 0,
    "_reduce_scatter_base": 0,
    "reduce_scatter_single": 0,
    "reduce_scatter_tensor_coalesced": 0,
    "alltoall": None,
    "alltoall_base": None,
    "all_to_all_single": None,
    "barrier": None,
}


tracer: Tracer | None = None

task = 0
"""The number of the task that a rank of a session does."""


def install(channel: Channel) -> None:
    """Have every collective of this rank compared."""
    global tracer  # noqa: PLW0603 - one per process
    tracer = Tracer(channel)
    tracer.wrap_all()


def begin_task(number: int) -> None:
    """Ranks that the task before left out of step call what they call from here on together."""
    global task  # noqa: PLW0603 - a rank does one at a time
    task = number
    if tracer is not None:
        tracer.forget_verdicts()


def scope(name: str) -> str:
    """Return within what the calls of a group or the steps of an optimizer are counted."""
    return f"{name} in task {task}"


class Tracer:
    """Announces what this rank is about to call, and waits until the kernel has compared it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._verdicts: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
        self._calls: Counter[str] = Counter()
        channel.handlers[Verdict] = self._verdicts.put

    def wrap_all(self) -> None:
        """Wrap every collective of torch's process groups."""
        from torch.distributed import ProcessGroup

        for method, same in METHODS.items():
            original = getattr(ProcessGroup, method, None)
            if original is not None:
                setattr(ProcessGroup, method, self._traced(method, same, original))

    def forget_verdicts(self) -> None:
        """What still comes is for a call that was interrupted."""
        while not self._verdicts.empty():
            self._verdicts.get()

    def _traced(self, method: str, same: int | None, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            self._announce(method, group, args, same)
            return original(group, *args, **kwargs)

        return call

    def _announce(self, method: str, group: Any, args: tuple[Any, ...], same: int | None) -> None:
        frame = sys._getframe(2)
        name = scope(group.group_name)
        self._calls[name] += 1
        number = self._calls[name]
        collective = collectives.about_to_begin(frame, method, group, number)
        # What runs in the background may rightly begin here before it does elsewhere.
        waits = not collectives.is_asynchronous(frame)
        key = f"{method} {collectives.terms(frame)} {_shapes(args, same)}"
        self._channel.send(Announced(name, collective, key, waits))
        if waits and (wrong := self._verdict(name, number).wrong):
            from nbstate.operations import DistributedOperationException

            raise DistributedOperationException(wrong)

    def _verdict(self, group: str, number: int) -> Verdict:
        try:
            return self._verdicts.get()
        except BaseException:
            self._channel.send(Withdrawn(group, number))
            raise


def _shapes(args: tuple[Any, ...], same: int | None) -> list[str]:
    if same is None or same >= len(args):
        return []
    given = args[same]
    return [
        collectives.shape_of(tensor)
        for tensor in (given if isinstance(given, (list, tuple)) else [given])
        if hasattr(tensor, "dtype")
    ]
