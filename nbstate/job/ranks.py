"""One rank as the kernel sees it: its process, its pipes, what it said and how it ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, Literal

from nbstate import values
from nbstate.job import processes, stacks
from nbstate.job.output import RankOutput
from nbstate.rank.bootstrap import STACK_SIGNAL
from nbstate.wire import Collective, Failed, Look, Pulse, Returned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from nbstate.job.stacks import Stack

RankState = Literal["starting", "running", "done", "failed", "stopped"]

READ_SIZE = 1 << 20
KEPT_STACKS = 1 << 17
_FATAL = b"Fatal Python error"
_F_SETPIPE_SZ = 1031


class Rank:
    """A handle on one rank of a job.

    Attributes
    ----------
    index
        Its global rank.
    pid
        Its process, or None before it has started.
    state
        ``"starting"``, ``"running"``, ``"done"``, ``"failed"`` or ``"stopped"``.
    exitcode
        What its process ended with; a signal's number, negative, where a signal ended it.
    output
        What it said and drew, for views.
    """

    def __init__(self, index: int, folder: Path) -> None:
        self.index = index
        self.pid: int | None = None
        self.state: RankState = "starting"
        self.exitcode: int | None = None
        self.gone = False
        self.doing = ""
        self.output = RankOutput(folder / f"rank{index}.log")
        self.error_file = str(folder / f"rank{index}.error.json")
        self.memory: int | None = None

    @property
    def stdout(self) -> str:
        """The end of what it wrote to its standard output; `log` has all of it."""
        return self.output.tail("stdout")

    @property
    def stderr(self) -> str:
        """The end of what it wrote to its standard error; `log` has all of it."""
        return self.output.tail("stderr")

    @property
    def log(self) -> Path:
        """The file with all that it wrote, standard output and error as they came."""
        return self.output.path

    @property
    def alive(self) -> bool:
        """Whether its process exists."""
        return self.pid is not None and not self.gone

    def begin_again(self, index: int) -> None:
        """Be a rank that has not started yet, once more; what it has said stays."""
        self.index = index
        self.pid = self.exitcode = self.memory = None
        self.gone = False
        self.state = "starting"
        self.doing = ""

    def __repr__(self) -> str:
        return f"<rank {self.index}: {self.state}, pid {self.pid}>"


class Line:
    """The kernel's ends of what ties it to one rank: text pipes, a connection, a process.

    `ends` are what the rank gets; `given` closes the kernel's copies once the rank has them.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.process: BaseProcess | None = None
        self.returned: Returned | None = None
        self.shared: int | None = None
        self.failed: Failed | None = None
        self.began = False
        self.told_to_stop = False
        self._sent: set[int] = set()
        self.told_wrong = False
        self.deaf_in: Collective | None = None  # where it heard no interrupt
        self.pulse: Pulse | None = None
        self._pulse_awaited = self._stacks_awaited = False
        self._cpu = 0.0
        self.ended_at = 0
        self._stacks_text = b""
        self.death: int | None = None
        self._opened: list[Callable[[], None]] = []
        self._far: list[Callable[[], None]] = []
        try:
            self.connection, self.far_connection = self._pipe()
            self.stdout, self.far_stdout = self._text_pipe()
            self.stderr, self.far_stderr = self._text_pipe()
            self.stacks, self.far_stacks = self._text_pipe()
        except BaseException:
            self.close()
            raise

    def _pipe(self) -> tuple[Connection[Any, Any], Connection[Any, Any]]:
        ours, far = multiprocessing.Pipe(duplex=True)
        self._opened += [ours.close, far.close]
        self._far.append(far.close)
        return ours, far

    def _text_pipe(self) -> tuple[int, int]:
        ours, far = os.pipe()
        self._far.append(_closer(far))
        self._opened += [_closer(ours), self._far[-1]]
        os.set_blocking(ours, False)
        _enlarge(ours)
        return ours, far

    @property
    def far_ends(self) -> tuple[int, ...]:
        """The descriptors that are the rank's, as long as the kernel holds them too."""
        far = self.far_connection.fileno()
        return far, self.far_stdout, self.far_stderr, self.far_stacks

    def given(self) -> None:
        """The rank has its ends: drop the kernel's copies of them."""
        for close in self._far:
            close()
            self._opened.remove(close)
        self._far = []

    def attach(self, process: BaseProcess) -> int:
        """Take the rank's process and return its number; `death` is readable when it ends."""
        assert process.pid is not None
        self.process = process
        self.rank.pid = process.pid
        self.death = _death_of(process)
        if self.death != process.sentinel:
            self._opened.append(_closer(self.death))
        return process.pid

    # -- hearing

    def read_text(self, stream: str) -> bytes | None:
        """Take in what the rank wrote to `stream`; None: nothing by now, empty: nor ever again."""
        descriptor = self.stdout if stream == "stdout" else self.stderr
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return None
        if data:
            self.rank.output.feed(stream, data)
        return data

    def messages(self) -> Iterator[object]:
        """Yield the messages that have arrived; a result's memory file is taken in with it."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if getattr(message, "shared", 0):
                    self.shared = reduction.recv_handle(self.connection)
                    if isinstance(message, Returned):  # another's taker closes it
                        self._opened.append(_closer(self.shared))
                yield message
        except (EOFError, OSError):  # the rank is gone; its end is told by `death`
            return

    def value(self) -> Any:
        """Build what the rank returned."""
        assert self.returned is not None
        buffers = values.map_shared(self.returned.buffers, self.shared)
        return values.load(self.returned.payload, buffers)

    def weights(self) -> list[Any]:
        """Build the weights that the rank gives back to the kernel's modules."""
        assert self.returned is not None
        return [values.load(weights, ()) for weights in self.returned.weights]

    def read_stacks(self) -> bool:
        """Read what the rank wrote about its own stack by now; False where there was nothing."""
        try:
            data = os.read(self.stacks, READ_SIZE)
        except BlockingIOError:
            return False
        self._stacks_text = (self._stacks_text + data)[-KEPT_STACKS:]
        return bool(data)

    @property
    def stack(self) -> Stack:
        """The last stack that the rank wrote about itself; it may be empty."""
        return stacks.latest(self._stacks_text.decode("utf-8", "replace"))

    @property
    def said_where(self) -> bool:
        """Whether all that was asked for last has arrived."""
        text = self._stacks_text.decode("utf-8", "replace")
        told = not self._stacks_awaited or stacks.is_whole(text)
        return told and not self._pulse_awaited

    @property
    def at_work(self) -> bool:
        """Whether the user's function is running in it, or about to."""
        return self.rank.alive and self.rank.state in ("starting", "running")

    def take_pulse(self, pulse: Pulse) -> None:
        """The rank has said where it is."""
        self._pulse_awaited = self._pulse_awaited and pulse.moved
        self.pulse = pulse
        if self.at_work:
            self.rank.doing = pulse.doing

    @property
    def collective(self) -> Collective | None:
        """The collective that the rank was in when it said so last."""
        if self.pulse is not None and not self._pulse_awaited:
            return self.pulse.collective
        name = self.stack.collective  # its C code holds the lock: the stack is all there is
        return Collective(name, where=self.stack.where) if name else None

    def measure(self) -> float:
        """Note the rank's memory; return the seconds of CPU time used since the last time."""
        found = None if self.rank.pid is None else processes.usage(self.rank.pid)
        if found is None:
            return 0.0
        before, (self.rank.memory, self._cpu) = self._cpu, found
        return self._cpu - before

    # -- telling

    def send(self, message: object, descriptor: int | None = None) -> None:
        """Send the rank a message, with an open file or without; one that is gone hears nothing."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps(message))
            if descriptor is not None:
                assert self.rank.pid is not None
                reduction.send_handle(self.connection, descriptor, self.rank.pid)

    def signal(self, number: int) -> None:
        """Send the rank's process a signal."""
        self._sent.add(number)
        if self.rank.pid is not None and not self.rank.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rank.pid, number)

    def ask_for_stacks(self) -> None:
        """Have the rank write its stacks, even while it holds the interpreter's lock."""
        if _FATAL in self._stacks_text:  # it is dying, and this is its last stack
            return
        self._stacks_text = b""
        self._stacks_awaited = self._can_answer
        if self._stacks_awaited:
            self.signal(STACK_SIGNAL)

    @property
    def _can_answer(self) -> bool:
        return self.rank.state != "starting"  # before that the signal would end it

    def ask_where(self) -> None:
        """Have the rank say where it is: its stack, and the collective it is in."""
        self.ask_for_stacks()
        self._pulse_awaited = self.at_work and self._can_answer
        if self._pulse_awaited:
            self.send(Look())

    def kill(self) -> None:
        """End the rank's process and all that it started, at once."""
        pid = self.rank.pid
        if pid is None or self.rank.gone:
            return
        family = processes.started_by(pid)
        self.signal(signal.SIGKILL)  # a fresh rank that has just begun leads no group yet
        self.kill_group()
        for child in family:
            processes.kill(child)

    def kill_group(self) -> None:
        """End the rank's process group. Until the rank is reaped its number cannot be another's."""
        assert self.rank.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.rank.pid, signal.SIGKILL)

    # -- the end

    @property
    def has_returned(self) -> bool:
        """Whether the function is over without a failure of its own: the rank waits to leave."""
        return self.returned is not None or (self.failed is not None and self.failed.returned)

    @property
    def ended_by_us(self) -> bool:
        """Whether a rank that left no word was ended from here, and did not fail by itself."""
        by_signal = self.rank.exitcode is not None and -self.rank.exitcode in self._sent
        return self.told_to_stop and (by_signal or not self.began)

    def reap(self) -> None:
        """The process is dead: end what it left, read the rest, and note how it ended."""
        assert self.process is not None
        self.kill_group()
        self.process.join()
        self.rank.exitcode = self.process.exitcode  # None if someone else waited for it first
        self.rank.gone = True
        self.ended_at = time.monotonic_ns()

    def drain(self) -> None:
        """Read the text that is left once the rank and its children are gone."""
        for stream in ("stdout", "stderr"):
            while self.read_text(stream):
                pass
        while self.read_stacks():
            pass
        self.rank.output.settle()

    def close(self) -> None:
        """Close every descriptor that is still open."""
        opened, self._opened = self._opened, []
        for close in opened:
            close()
        if self.process is not None and self.rank.exitcode is not None:
            self.process.close()
        self.process = None


def _closer(descriptor: int) -> Callable[[], None]:
    return lambda: os.close(descriptor)


def _enlarge(pipe: int) -> None:
    """Fewer, larger reads; a system that refuses keeps its usual 64 KiB."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, _F_SETPIPE_SZ, READ_SIZE)


def _death_of(process: BaseProcess) -> int:
    """Return a descriptor that becomes readable when the process ends.

    Not multiprocessing's sentinel where it can be avoided: that is a pipe, which the rank's own
    children inherit and keep open after the rank has died.
    """
    try:
        assert process.pid is not None
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # macOS; a sandbox without the call
        return process.sentinel
