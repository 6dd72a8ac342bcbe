"""When this rank began and ended each collective and each step, for the timeline.

The methods of torch's process groups are wrapped, as in `nbstate.rank.trace`, outside of that
module's wrappers: a collective begins here when the rank has come to it, not when all have. It
ends when it is over, or, on an accelerator with a queue of its own, when the rank has waited for
it or has handed it over for good. A step is an optimizer's: it begins where the one before ended,
so that it has the loading of its data and the backward pass in it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from nbstate.rank import bootstrap, collectives, failure, functional, reducer
from nbstate.rank.trace import METHODS, scope
from nbstate.wire import STEP, Collective, Span, Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbstate.rank.channel import Channel

FLUSH_EVERY = 0.1
"""Seconds for which a rank gathers what it has timed."""


class Recorder:
    """Times the collectives and steps of this process while it is `on`."""

    def __init__(self, channel: Channel) -> None:
        self.on = True
        self.steps = Steps(self._keep)
        self._channel = channel
        self._lock = threading.RLock()  # a work may be dropped, and end, anywhere
        self._gathered: list[Span] = []
        self._calls: Counter[str] = Counter()
        self._under_way: dict[int, tuple[Span, Any]] = {}
        self._numbers = count()
        self._ends: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()

    def install(self, *, late: bool) -> None:
        """Wrap all collectives of torch's process groups and the waits for them; hear of steps."""
        from torch.distributed import ProcessGroup, Work
        from torch.optim.optimizer import register_optimizer_step_post_hook

        for method in METHODS:
            original = getattr(ProcessGroup, method, None)
            if original is not None:
                setattr(ProcessGroup, method, self._timed(method, original))
        Work.wait = self._waited(Work.wait)  # type: ignore[method-assign]
        register_optimizer_step_post_hook(self._stepped)
        reducer.install(late=late)
        functional.install()

    def _stepped(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if self.on:
            self.steps.ended(optimizer, failure.where_of(sys._getframe(1)))

    def _timed(self, method: str, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(group, *args, **kwargs)
            began = time.monotonic_ns()
            frame = sys._getframe(1)
            work = original(group, *args, **kwargs)
            name = scope(group.group_name)
            self._calls[name] += 1
            what = collectives.about_to_begin(frame, method, group, self._calls[name])
            span = Span(what, name, _size(args), began, time.monotonic_ns())
            if work is None or work.is_completed():
                self._keep(span)
            else:
                self._follow(work, span, _on_cpu(args))
            return work

        return call

    def _waited(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(work, *args, **kwargs)
            if work in self._ends:
                self._ends[work]()
            return done

        return wait

    def _follow(self, work: Any, span: Span, on_cpu: bool) -> None:
        """Keep the span once this work is over: nobody need wait for it in Python."""
        number = next(self._numbers)
        end = functools.partial(self._end, number)
        future = _future(work) if on_cpu else None
        self._under_way[number] = span, future
        if future is not None:
            future.add_done_callback(lambda _: end())
        else:
            self._ends[work] = end
            weakref.finalize(work, end).atexit = False

    def _end(self, number: int) -> None:
        span, _ = self._under_way.pop(number, (None, None))
        if span is not None:
            self._keep(replace(span, ended=time.monotonic_ns()))

    def _keep(self, span: Span) -> None:
        with self._lock:
            self._gathered.append(span)
            if len(self._gathered) == 1:
                later = threading.Timer(FLUSH_EVERY, self.flush)
                later.daemon = True
                later.start()

    def flush(self) -> None:
        """Send what has been gathered."""
        for number, (_, future) in list(self._under_way.items()):
            if future is not None and future.done():  # its callback has not had its turn yet
                self._end(number)
        with self._lock:
            spans, self._gathered = tuple(self._gathered), []
        if spans:
            self._channel.send(Traced(spans))


class Steps:
    """Makes spans of the ends of optimizers' steps."""

    def __init__(self, keep: Callable[[Span], None]) -> None:
        self._keep = keep
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._counts: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """From now on steps are timed: the first of each optimizer begins here."""
        self._began = time.monotonic_ns()
        self._last: dict[str, int] = {}

    def ended(self, optimizer: Any, where: str) -> None:
        """Keep the step that has just ended."""
        name = self._name(optimizer)
        began, now = self._last.get(name, self._began), time.monotonic_ns()
        within = scope(name)
        self._counts[within] += 1
        self._last[name] = now
        number = self._counts[within]
        what = Collective(STEP, f"{number} of {name}", f"steps of {name}", (), number, where)
        self._keep(Span(what, within, 0, began, now))

    def _name(self, optimizer: Any) -> str:
        """Return the optimizer's class; a second one of that class has a number."""
        if optimizer not in self._names:
            kind = type(optimizer).__name__
            self._kinds[kind] += 1
            count = self._kinds[kind]
            self._names[optimizer] = kind if count == 1 else f"{kind} {count}"
        return self._names[optimizer]


recorder: Recorder | None = None


def install(channel: Channel, *, late: bool = False) -> None:
    """Begin to time this rank's collectives and steps; `late` if it may have made models."""
    global recorder  # noqa: PLW0603 - one per process
    recorder = Recorder(channel)
    recorder.install(late=late)


def begin_steps() -> None:
    """What has come between, such as a pause between two cells, belongs to no step."""
    if recorder is not None:
        recorder.steps.begin()


def flush() -> None:
    """Send what has been gathered."""
    if recorder is not None:
        recorder.flush()


@contextlib.contextmanager
def trace() -> Iterator[None]:
    """Time collectives and steps of this rank in a `with` block, for the timeline of its job.

    That is ``job.timeline()`` or ``session.timeline()``. For ranks of a run that was not started
    with ``trace=True``.

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
    each rank: 1 collective
    ...
    """
    if bootstrap.talk is None:
        raise RuntimeError("trace() belongs into a function or cell that ranks run")
    if recorder is None:
        install(bootstrap.talk, late=True)
    assert recorder is not None
    before, recorder.on = recorder.on, True
    if not before:
        begin_steps()
    try:
        yield
    finally:
        recorder.on = before and bootstrap.current is not None and bootstrap.current.trace


def _future(work: Any) -> Any:
    try:
        return work.get_future()
    except RuntimeError:  # not every work of every backend has one
        return None


def _on_cpu(args: tuple[Any, ...]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in _tensors(args))


def _size(args: tuple[Any, ...]) -> int:
    """Return the bytes of the tensors that a method of a process group was given first."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(args))


def _tensors(args: tuple[Any, ...]) -> list[Any]:
    given: Any = args[0] if args else None
    while isinstance(given, (list, tuple)) and given and isinstance(given[0], (list, tuple)):
        given = given[0]
    tensors = given if isinstance(given, (list, tuple)) else [given]
    return [tensor for tensor in tensors if hasattr(tensor, "element_size")]
