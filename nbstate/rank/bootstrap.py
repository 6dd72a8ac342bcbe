"""The life of a rank, from its first instruction to its hard exit.

    begin   leave the kernel's process group, be ready to die with it, drop what was the kernel's
    set up  streams, signals, environment, fresh states, threads, random state
    work    call the user's function
    report  a Returned or a Failed, then wait until every rank is done
    leave   let the rank's threads, exit hooks and processes finish, exit; its group ends with it

A rank never returns from `live`: whatever happens it ends in `os._exit`, so that it cannot run the
kernel's exit handlers or go on with the notebook's code.
"""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import inspect
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbstate import memory, travel, values
from nbstate.rank import (
    capture,
    failure,
    front,
    groups,
    parent,
    pools,
    pulse,
    states,
    timing,
    trace,
)
from nbstate.rank.channel import Channel
from nbstate.wire import Failed, Leave, Returned, Started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from nbstate.rank.call import Call, Parcel, Surroundings

STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Asks a rank for its stacks; the last real-time signal is the least likely one to be in use."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All that a rank is told at its birth."""

    rank: int
    local_rank: int
    world_size: int
    kernel_pid: int | None
    kernel_group: int
    call: Call | Parcel
    by_reference: Mapping[int, str]
    environment: Mapping[str, str]
    threads: int | None
    seed: int | tuple[str, int] | None
    trace: bool
    connection: Connection[Any, Any]
    stdout: int
    stderr: int
    stacks: int
    not_ours: Sequence[int] = ()
    surroundings: Surroundings | None = None


current: Setup | None = None
"""What this process is, in a rank; None in the kernel."""

talk: Channel | None = None
"""This rank's end of its connection to the kernel."""


def live(setup: Setup) -> None:
    """Be rank `setup.rank`; does not return."""
    global current, talk  # noqa: PLW0603 - what this process is, once and for all
    current = setup
    code = 1
    talk = channel = Channel(setup.connection)
    try:
        _begin(setup)
        _set_up(setup)
        code = _work_and_report(setup, channel)
    except BaseException as error:
        _last_words(channel, error)
    finally:
        try:
            capture.flush()
        finally:
            os._exit(code)


def _last_words(channel: Channel, error: BaseException) -> None:
    """Not the function failed but what is around it: say so in any way that still works."""
    try:
        channel.send(failure.describe(error))
    except BaseException:
        os.write(2, f"nbstate: {type(error).__name__} while a rank was ending\n".encode())


def _begin(setup: Setup) -> None:
    parent.follow(setup.kernel_pid)
    _be_the_main_thread()
    parent.let_go(setup.not_ours)
    parent.spare_the_tracker(setup.kernel_group)
    capture.capture(setup.stdout, setup.stderr)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    faulthandler.enable(setup.stacks, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=setup.stacks, all_threads=False)


def _be_the_main_thread() -> None:
    """What was the job's daemon thread is this process's main thread.

    Threads inherit from it whether a process waits for them; the user's threads must be waited for.
    """
    thread = threading.main_thread()
    thread.name = "MainThread"
    thread._daemonic = False  # type: ignore[attr-defined] # the setter refuses a running thread


def _set_up(setup: Setup) -> None:
    _reset_signals()
    atexit._clear()  # the kernel's exit handlers are not this process's to run
    travel.begin(setup.by_reference)
    if setup.surroundings is not None:
        setup.surroundings.restore()
    os.environ.update(setup.environment)
    # A DataLoader in here must find the notebook's classes, whatever the kernel's default is.
    multiprocessing.set_start_method("fork", force=True)
    pools.forget_the_kernels()
    _reset_states()
    if setup.threads is not None and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(setup.threads)
    seed(setup.seed, setup.rank)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)  # the kernel's event loop listens there, not this process's
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _reset_states() -> None:
    groups.leave_the_kernels()
    if "nbstate.state" in sys.modules:
        sys.modules["nbstate.state"].reset_all(
            "a rank was forked, where states and the Accelerator are made anew"
        )
    states.forget_accelerates()


def seed(chosen: int | tuple[str, int] | None, rank: int) -> None:
    """Seed Python's, NumPy's and torch's generators as the option `seed` asks."""
    if chosen is None:
        return
    number = chosen if isinstance(chosen, int) else (chosen[1] + rank) % 2**32
    import random

    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


# -- work and report


def _work_and_report(setup: Setup, channel: Channel) -> int:
    leave = threading.Event()
    channel.handlers[Leave] = lambda _: leave.set()
    front.install(channel, setup.stdout, setup.surroundings)
    pulse.start(channel)
    states.install(channel)
    if setup.trace:
        trace.install(channel)
        timing.install(channel)
    channel.listen()
    this_rank = os.getpid()
    channel.send(Started(memory.own()))
    outcome, descriptor = _call(setup)
    if os.getpid() != this_rank:  # a child that the function forked, and that came back from it
        return 0 if isinstance(outcome, Returned) else 1
    front.finish()
    capture.flush()
    if isinstance(outcome, Returned):
        states.leave()
    channel.send(outcome, descriptor)
    if isinstance(outcome, Failed) and not outcome.returned:
        # Peers that wait for this rank in a collective learn of its end by its closed connections.
        return outcome.exit_code or 1
    leave.wait()
    _leave()
    return 1 if isinstance(outcome, Failed) else 0


def _call(setup: Setup) -> tuple[Returned | Failed, int | None]:
    try:
        # Blocked since the fork: an interrupt that came meanwhile is raised here, and is told.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        task = setup.call.open()
        if task.prepare is not None:
            task.prepare()
        value = _value_of(task)
        _hear_no_interrupt()
        weights = _weights(task.write_back) if setup.local_rank == 0 else ()
    except BaseException as error:
        _hear_no_interrupt()
        return failure.describe(error), None
    try:
        payload, raw = travel.dump_back(value, "result")
        buffers, descriptor, length = values.share(raw)
    except Exception as error:
        return replace(failure.describe(error), returned=True), None
    return Returned(payload, buffers, length, weights, _lingering()), descriptor


def _value_of(task: Call) -> Any:
    try:
        return call(task.function, task.args, task.kwargs)
    except SystemExit as error:
        _hear_no_interrupt()
        if failure.exit_code(error) == 0:  # a script that ends well says so this way
            return None
        raise


def _hear_no_interrupt() -> None:
    """The function is over: an interrupt must not take the place of how it ended."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:  # it came just before
            continue
        return


def _weights(modules: Sequence[Any]) -> tuple[bytes, ...]:
    return tuple(values.dump_whole(module.state_dict()) for module in modules)


def call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call the user's function; a coroutine is awaited, a generator refused.

    Raises
    ------
    UnpicklableError
        The function returned a generator, which cannot leave its process.
    """
    value = function(*args, **kwargs)
    if inspect.iscoroutine(value):
        with _no_loop_running():
            value = asyncio.run(value)
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        name = getattr(function, "__name__", "the function")
        raise values.UnpicklableError(
            f"{name} returned a generator, which cannot leave its process: "
            f"return list({name}(...)) instead"
        )
    return value


@contextmanager
def _no_loop_running() -> Iterator[None]:
    """Set the event loop of this thread aside: with one process a cell runs inside the kernel's.

    Not in a thread of its own: no interrupt would reach a function that does not await.
    """
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    task: Any = asyncio.current_task(loop)
    try:
        if task is not None:
            asyncio._leave_task(loop, task)
        asyncio._set_running_loop(None)
        yield
    finally:
        asyncio._set_running_loop(loop)
        asyncio.set_event_loop(loop)  # `asyncio.run` has left none
        if task is not None:
            asyncio._enter_task(loop, task)


# -- leave


def _leave() -> None:
    # The process group ends with the process, silently: every rank is past its last collective.
    # As the interpreter does at its end: idle threads of executors are told that there is no more.
    for told in reversed(getattr(threading, "_threading_atexits", ())):
        told()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    # Its own exit handler went with the kernel's: processes that are no daemons are waited for.
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]


def _lingering() -> tuple[str, ...]:
    """Name what the function left behind that keeps a process from ending."""
    here = threading.current_thread()
    threads = [t for t in threading.enumerate() if t is not here and not t.daemon]
    processes = [child for child in multiprocessing.active_children() if not child.daemon]
    return (
        *(f"thread {thread.name!r}" for thread in threads),
        *(f"process {process.name!r}" for process in processes),
    )
