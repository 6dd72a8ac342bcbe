"""The one loop that brings the ranks of a run to life, hears them all, and sees them all end.

    kernel's main thread          this thread (fresh for each run)             ranks 0..N-1
    --------------------          --------------------------------             ------------
    Job.start() ----------------> fork, fork, ...  --------------------------> rank.bootstrap
                                  select: text pipes, connections, deaths  <--- text, messages
    Job.stop(), .interrupt() ---> wake-up pipe
                                  all returned: tell them to leave ----------> tear down, exit
    Job.wait() <----------------- finished

Who may die, and who notices:

- a rank: its process descriptor becomes readable here; its process group goes with it;
- the kernel: each rank gets a signal, and the guard ends what the ranks had started;
- this thread: only when every rank is gone. The ranks' parent-death signal is bound to it.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Literal

from nbstate import memory
from nbstate.job import ends, processes
from nbstate.job.ending import Ending
from nbstate.job.events import Events
from nbstate.job.inquiry import Inquiry
from nbstate.job.matching import Matcher
from nbstate.job.ranks import Line, Rank
from nbstate.job.stall import Watch
from nbstate.start import limits
from nbstate.start.guard import Guard
from nbstate.start.setup import setup_for
from nbstate.wire import (
    Announced,
    ClearOutput,
    Display,
    Failed,
    Leave,
    Pulse,
    Returned,
    Started,
    Verdict,
    Withdrawn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbstate.job.run import Run

Reason = Literal["failure", "stop", "timeout"]

AT_ONCE = 8
"""Ranks whose pipes are made before the first of them is: more would need more descriptors."""

TEXT_EVERY = 0.01
"""Seconds between two reads of one stream; its pipe holds more than a rank prints in that time."""


class Loop:
    """Runs one job from its first fork to its last exit. Used from one thread, but for `ask`."""

    def __init__(self, job: Run) -> None:
        self._job = job
        self._before = processes.pids()  # may fail for want of descriptors: no file is open yet
        self.lines: list[Line] = []
        self._guard: Guard | None = None
        self._events = Events()
        self.ask, self._at = self._events.ask, self._events.at
        self.listen, self.forget = self._events.listen, self._events.forget
        self._inquiry = Inquiry(self._at)
        self.watch = Watch(job, lambda then: self._inquiry.ask(self.lines, then))
        self.matcher = Matcher(self._send_verdict)
        self._restarts_left = job.options.max_restarts
        self._leaving = False
        self.reason: Reason | None = None
        self.at_once = False
        self.memory_kills = memory.kills_for_memory()

    def run(self) -> None:
        """Start the ranks, hear them, and return when all are gone and everything is closed."""
        try:
            # Interrupts are the main thread's; a rank takes them once it is ready to tell of them.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            self._job.nodes.follow(self)
            self._start()
            self._hear()
            while self._may_begin_again():
                self._begin_again()
                self._start()
                self._hear()
        finally:
            self.close()

    def _start(self) -> None:
        with limits.explained(self._job.world_size):
            with ends.settled:
                self._guard = Guard(self._job.mark)
                self._register_ends()
            ranks = self._job.ranks
            with self._job.start_method.ready():
                for first in range(0, len(ranks), AT_ONCE):
                    self._start_some(ranks[first : first + AT_ONCE])
            self._job.rendezvous.open_store(self._job.world_size)
        self._job.started()
        if self._job.options.timeout is not None:
            self._at(self._job.options.timeout - self._job.elapsed, self._out_of_time)
        self._at(self.watch.every, self._look)

    def _may_begin_again(self) -> bool:
        """Tell whether there is to be a further attempt. Several nodes decide that together."""
        nodes = self._job.nodes
        together = nodes.goes_on()
        if together is None:
            may = self._restarts_left > 0 and self.reason == "failure"
            return may and self._job.may_restart()
        if not together:
            return False
        self._job.restart_together()
        self.reason = None
        while not nodes.ready() and self.reason is None:
            self._hear_once()
        if not nodes.ready():
            self._job.restarts -= 1
        return nodes.ready()

    def _begin_again(self) -> None:
        """Every rank of a failed attempt is gone: be as before the first one."""
        self._restarts_left -= 1
        self._leave_nothing()
        if self._guard is not None:
            self._guard.wait()
        self._guard, self.lines, self.reason = None, [], None
        self.matcher = Matcher(self._send_verdict)
        self._job.take_places()

    def _start_some(self, ranks: Sequence[Rank]) -> None:
        """Start ranks, with as little as can be between two forks.

        After a fork this process shares its memory, and copies each page that it changes first.
        """
        assert self._guard is not None
        limits.try_descriptors(12 * len(ranks) + 4)
        with ends.settled:
            for rank in ranks:
                self.lines.append(Line(rank))
            self._register_ends()
            lines = self.lines[-len(ranks) :]
            setups = [setup_for(self._job, line, _not_of(line, lines)) for line in lines]
            for line, setup in zip(lines, setups, strict=True):
                self._guard.watch(line.attach(self._job.start_method.start(setup)))
            for line in lines:
                line.given()
        for line in lines:
            self._attend(line)

    def _attend(self, line: Line) -> None:
        assert line.death is not None
        self.listen(line.connection.fileno(), lambda: self._hear_messages(line))
        self._listen_to_text(line, "stdout")
        self._listen_to_text(line, "stderr")
        self.listen(line.stacks, lambda: self._hear_stacks(line))
        self.listen(line.death, lambda: self._bury(line))

    def _register_ends(self) -> None:
        mine = [*self._events.descriptors, *self._job.nodes.descriptors]
        for line in self.lines:
            mine += [line.connection.fileno(), line.stdout, line.stderr, line.stacks]
        if self._guard is not None:
            mine.append(self._guard.descriptor)
        ends.register(self, mine)

    def _hear(self) -> None:
        while any(line.rank.alive for line in self.lines):
            self._hear_once()
        self._job.ranks_ended()
        while not self._job.nodes.settled:
            self._hear_once()

    def _hear_once(self) -> None:
        self._events.take()
        self._job.changed()

    def _leave_nothing(self) -> None:
        """End what a run or an attempt still has: ranks, pipes, the guard, deadlines."""
        ends.unregister(self)
        for line in self.lines:
            if line.rank.alive:  # only when starting or hearing itself broke
                line.kill()
                line.reap()
                line.drain()
            line.close()
        groups = [line.rank.pid for line in self.lines if line.rank.pid is not None]
        if groups:
            processes.kill_left(self._job.mark, groups, self._before)
        if self._guard is not None:
            self._guard.dismiss()
        self._inquiry.end()
        self._events.clear_deadlines()

    def close(self) -> None:
        """Close everything; whatever is asked from here on is not done."""
        self._leave_nothing()
        for rank in self._job.ranks:
            rank.output.finish()
            if rank.output.log_error is not None:
                why = rank.output.log_error.strerror
                self._job.note(f"the log of rank {rank.index} is cut short: {why}")
        self._events.close()
        self._inquiry.end()
        self._job.nodes.close()
        if self._guard is not None:
            self._guard.wait()
        # No circle of references: big results are freed with the last name for them.
        del self._job, self.watch, self._inquiry, self.matcher

    # -- hearing

    def _hear_text(self, line: Line, stream: str) -> None:
        """Read, and let the next text gather for a moment: a rank writes line by line."""
        self.forget(line.stdout if stream == "stdout" else line.stderr)
        if line.read_text(stream) != b"":
            self._at(TEXT_EVERY, lambda: self._listen_to_text(line, stream))
        self.watch.spoke()

    def _listen_to_text(self, line: Line, stream: str) -> None:
        if line.rank.alive:
            descriptor = line.stdout if stream == "stdout" else line.stderr
            self.listen(descriptor, lambda: self._hear_text(line, stream))

    def _hear_messages(self, line: Line) -> None:
        # What a rank printed before it sent a message is heard before it.
        for stream in ("stdout", "stderr"):
            line.read_text(stream)
        heard = False
        for message in line.messages():
            heard = True
            self._take(line, message)
        if not heard:  # readable, and nothing there: the rank has closed its end
            self.forget(line.connection.fileno())

    def _take(self, line: Line, message: object) -> None:
        if isinstance(message, Started):
            line.rank.state = "running"
            line.began = True
            line.rank.memory = message.memory
            self.watch.moved()
        elif isinstance(message, Pulse):
            line.take_pulse(message)
            self._inquiry.check(self.lines)
            if message.moved:
                self.watch.moved()
        elif isinstance(message, Announced):
            self.matcher.take(line.rank.index, message)
        elif isinstance(message, Withdrawn):
            self.matcher.withdraw(line.rank.index, message)
        elif isinstance(message, (Display, ClearOutput)):
            line.rank.output.draw(message)
        elif isinstance(message, Returned):
            self._take_result(line, message)
        elif isinstance(message, Failed):
            line.failed = message
            (self._over_for if message.returned else self._failed)(line)
        else:
            self._job.heard(line.rank, message)
            self.watch.moved()

    def _take_result(self, line: Line, message: Returned) -> None:
        line.returned = message
        self._job.take_result(line)
        self._over_for(line)

    def _over_for(self, line: Line) -> None:
        """A rank's function has returned; where its value is lost, the others' are not."""
        line.rank.state = "done" if line.failed is None else "failed"
        self.watch.spoke()
        self.matcher.returned(line.rank.index)
        if self.reason is not None:
            line.send(Leave())
        elif all(other.has_returned or other.rank.gone for other in self.lines):
            self._job.nodes.returned()

    def _bury(self, line: Line) -> None:
        """A rank's process has ended: hear the rest, and go on without it."""
        assert line.death is not None
        descriptors = (line.death, line.connection.fileno(), line.stdout, line.stderr, line.stacks)
        for message in line.messages():
            self._take(line, message)
        line.reap()
        line.drain()
        self.forget(*descriptors)
        if line.returned is None and line.failed is None:
            self._failed(line)

    # -- policy

    def let_leave(self) -> None:
        """Every rank of every node has returned: each may tear its process group down and exit."""
        self._leaving = True
        for line in self.lines:
            line.send(Leave())
        self._at(self._job.options.grace, self._end_the_lingering)

    def _end_the_lingering(self) -> None:
        for line in self.lines:
            if line.rank.alive:
                left = line.returned.lingering if line.returned is not None else ()
                what = ", ".join(left) or "an exit handler or a thread"
                self._job.note(
                    f"rank {line.rank.index}: left running after it returned: {what}; it was ended"
                )
                line.kill()

    def _failed(self, line: Line) -> None:
        lost = line.failed is not None and line.failed.peer_lost
        told = line.told_to_stop if line.failed is not None else line.ended_by_us
        line.rank.state = "stopped" if lost or told else "failed"
        if self._job.on_failure is None:
            self.stop("failure")
        else:
            self._job.on_failure(line.rank)

    def note(self, line: str) -> None:
        """Have the user read a line."""
        self._job.note(line)

    def stop(self, reason: Reason) -> None:
        """End the run, politely first: a keyboard interrupt, then SIGTERM, then SIGKILL."""
        if reason != "failure":
            self._restarts_left = 0
        if self._leaving:
            self._end_the_lingering()  # their results are here; what still runs is in the way
        if self.reason is not None or self._leaving:
            return
        self.reason = reason
        self._job.stopping()
        self._job.nodes.stopping(reason)
        for line in self.lines:
            if line.has_returned:
                line.send(Leave())
        self._ending().begin(self._job.options.grace, after_failure=reason == "failure")

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every rank that is still at work; what follows is theirs."""
        for line in self.lines:
            if line.rank.state in ("starting", "running"):
                line.signal(signal.SIGINT)

    def send(self, rank: int, message: object) -> None:
        """Send one rank a message."""
        self.lines[rank - self._job.nodes.offset].send(message)

    def kill(self) -> None:
        """End every rank that is still there, with all that it started."""
        if self.reason is None:
            self.reason = "stop"
            self._job.nodes.stopping("stop")
        self._restarts_left = 0
        self.at_once = True
        if not any(line.rank.alive for line in self.lines):
            self._job.nodes.abandon()
        self._ending().kill()

    def _ending(self) -> Ending:
        return Ending(self.lines, self._at, lambda then: self._inquiry.ask(self.lines, then))

    def _out_of_time(self) -> None:
        if not self._leaving:
            self.stop("timeout")

    def collect_stacks(self) -> None:
        """Have every living rank say where it is; return once they have. From any thread."""
        told = threading.Event()
        if self.ask(lambda: self._inquiry.ask(self.lines, told.set)):
            told.wait()

    def _hear_stacks(self, line: Line) -> None:
        if not line.read_stacks():
            self.forget(line.stacks)
        self._inquiry.check(self.lines)

    def _look(self) -> None:
        self.watch.look()
        for told in self.matcher.lonely(lambda rank: self.lines[rank].rank.doing):
            self._job.note(told)
        self._at(self.watch.every, self._look)

    def _send_verdict(self, rank: int, verdict: Verdict) -> None:
        self.lines[rank].told_wrong = bool(verdict.wrong)
        self.send(rank, verdict)


def _not_of(line: Line, lines: Sequence[Line]) -> tuple[int, ...]:
    """Return what is open at the fork of a rank and not its own."""
    others = (end for other in lines if other is not line for end in other.far_ends)
    return (*ends.listed(), *others)
