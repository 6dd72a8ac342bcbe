"""When this rank began and ended each collective, for the timeline.

The methods of torch's process groups are wrapped, as in `nbstate.rank.trace`, outside of that
module's wrappers: a collective begins here when the rank has come to it, not when all have. What
the reducer of DistributedDataParallel does in C++ is not seen.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from nbstate.rank import bootstrap, collectives
from nbstate.rank.trace import _METHODS
from nbstate.wire import Span, Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbstate.rank.channel import Channel

FLUSH_EVERY = 0.1
"""Seconds for which a rank gathers what it has timed."""


class Recorder:
    """Times the collectives of this process while it is `on`."""

    def __init__(self, channel: Channel) -> None:
        self.on = True
        self._channel = channel
        self._lock = threading.Lock()
        self._gathered: list[Span] = []
        self._calls: Counter[str] = Counter()
        self._under_way: dict[int, Span] = {}

    def install(self) -> None:
        """Wrap every collective of torch's process groups, and the waits for them."""
        from torch.distributed import ProcessGroup, Work

        for method in _METHODS:
            original = getattr(ProcessGroup, method, None)
            if original is not None:
                setattr(ProcessGroup, method, self._timed(method, original))
        Work.wait = self._waited(Work.wait)  # type: ignore[method-assign]

    def _timed(self, method: str, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(group, *args, **kwargs)
            began = time.monotonic_ns()
            frame = sys._getframe(1)
            work = original(group, *args, **kwargs)
            self._calls[group.group_name] += 1
            number = self._calls[group.group_name]
            what = collectives.about_to_begin(frame, method, group, number)
            span = Span(what, _size(args), began, time.monotonic_ns())
            if work is None or work.is_completed():
                self._keep(span)
            else:
                self._under_way[id(work)] = span
            return work

        return call

    def _waited(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(work, *args, **kwargs)
            span = self._under_way.pop(id(work), None)
            if span is not None:
                self._keep(Span(span.what, span.size, span.began, time.monotonic_ns()))
            return done

        return wait

    def _keep(self, span: Span) -> None:
        with self._lock:
            self._gathered.append(span)
            if len(self._gathered) == 1:
                later = threading.Timer(FLUSH_EVERY, self.flush)
                later.daemon = True
                later.start()

    def flush(self) -> None:
        """Send what has been gathered."""
        with self._lock:
            spans, self._gathered = tuple(self._gathered), []
        if spans:
            self._channel.send(Traced(spans))


recorder: Recorder | None = None


def install(channel: Channel) -> None:
    """Begin to time this rank's collectives."""
    global recorder  # noqa: PLW0603 - one per process
    recorder = Recorder(channel)
    recorder.install()


def flush() -> None:
    """Send what has been gathered."""
    if recorder is not None:
        recorder.flush()


@contextlib.contextmanager
def trace() -> Iterator[None]:
    """Time the collectives of this rank in a `with` block, for the job's or session's timeline.

    For ranks of a job or session that was not started with ``trace=True``.

    Raises
    ------
    RuntimeError
        This is no rank.

    Examples
    --------
    >>> def train():
    ...     PartialState()
    ...     with trace():
    ...         reduce(torch.ones(1))
    >>> job = launch(train, num_processes=2)
    >>> results = job.wait()
    >>> print(job.timeline())
    collectives of rank 0: 1, rank 1: 1
    ...
    """
    if bootstrap.talk is None:
        raise RuntimeError("trace() belongs into a function or cell that ranks run")
    if recorder is None:
        install(bootstrap.talk)
    assert recorder is not None
    before, recorder.on = recorder.on, True
    try:
        yield
    finally:
        recorder.on = before and bootstrap.current is not None and bootstrap.current.trace


def _size(args: tuple[Any, ...]) -> int:
    """Return the bytes of the tensors that a method of a process group was given first."""
    given: Any = args[0] if args else None
    while isinstance(given, (list, tuple)) and given and isinstance(given[0], (list, tuple)):
        given = given[0]
    tensors = given if isinstance(given, (list, tuple)) else [given]
    return sum(t.numel() * t.element_size() for t in tensors if hasattr(t, "element_size"))
