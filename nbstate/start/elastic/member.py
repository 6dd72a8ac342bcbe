"""A kernel's own part in a run on several nodes: it meets the others; its loop hears of them."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from nbstate import values
from nbstate.start.elastic.messages import (
    AllReturned,
    Begin,
    Challenge,
    Ended,
    Hello,
    MayLeave,
    Refused,
    Settled,
    Stop,
    Stopping,
    Welcome,
    lost_at,
    proof,
    proves,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nbstate.errors import RankFailure
    from nbstate.job.loop import Loop
    from nbstate.options import LaunchOptions
    from nbstate.start.elastic.hub import Hub
    from nbstate.start.elastic.link import Link
    from nbstate.start.elastic.messages import Message
    from nbstate.start.elastic.terms import Terms
    from nbstate.start.nodes import MeetingPoint

NOTICE = 2.0
"""Seconds of waiting for other notebooks after which the cell says so."""


@dataclass(frozen=True)
class Elsewhere:
    """A store that another node serves."""

    address: str
    port: int

    def open_store(self, world_size: int) -> None:
        """Nothing to do: it is opened there."""

    def close(self) -> None:
        """Nothing to do: it is not ours."""


class HungUpError(ConnectionError):
    """The hub hung up before this kernel was welcome: it was that of a run that ends."""


class Member:
    """A kernel among the nodes of its run; `nbstate.start.nodes.OneNode` documents its parts.

    Parameters
    ----------
    link
        To the hub.
    terms, options
        What the launch was asked for.
    ranks
        How many ranks this node has.
    hub
        The hub, where it is this kernel's own.
    """

    meeting_point: MeetingPoint

    def __init__(
        self, link: Link, terms: Terms, options: LaunchOptions, ranks: int, hub: Hub | None
    ) -> None:
        self._link = link
        self._terms = terms
        self._options = options
        self._ranks = ranks
        self._hub = hub
        self._loop: Loop | None = None
        self._nonce = secrets.token_hex(16)
        self._hub_address = link.there if hub is None else hub.address
        self._place: Begin | None = None
        self._next: Begin | None = None
        self._again = self._leaving = False
        self.address = link.here if hub is None else hub.address
        self.run_id = options.rdzv_id
        self.clock = time.time_ns() - time.monotonic_ns()
        self.settled = False
        self.stopped_by = self.note = ""
        self.failures: Sequence[RankFailure] = ()
        self.values: Mapping[int, Any] = {}

    # -- the meeting, in the cell

    def meet(self, until: float, told: Callable[[], None]) -> None:
        """Wait until all are here; `told` is called when that takes longer.

        Raises
        ------
        ValueError
            This node cannot take part; the message says why.
        TimeoutError
            The others did not come in time.
        ConnectionError
            The hub's kernel is gone.
        """
        notice: float | None = time.monotonic() + NOTICE
        while self._next is None:
            limit = until if notice is None else min(until, notice)
            left = None if limit == math.inf else max(0.0, limit - time.monotonic())
            if wait([self._link.fileno()], left):
                self._hear_in_the_meeting()
            elif time.monotonic() >= until:
                raise TimeoutError(f"not all nodes came to {self._terms.place} in time")
            elif notice is not None:
                notice = None
                told()
        self.begin()

    def _hear_in_the_meeting(self) -> None:
        try:
            for message, blob in self._link.receive():
                if isinstance(message, Refused):
                    kind = TimeoutError if message.late else ValueError
                    raise kind(f"{message.text} (at {self._terms.place}, where the notebooks meet)")
                self._take(message, blob)
        except ConnectionError as error:
            if not self._link.trusted:
                raise HungUpError(str(error)) from None
            raise ConnectionError(
                f"the kernel at {self._terms.place}, where the notebooks meet, has gone"
            ) from None

    def _say_hello(self, challenge: Challenge) -> None:
        hello = Hello(
            terms=self._terms.shared,
            node_rank=self._options.node_rank,
            local_ranks=self._ranks,
            grace=self._options.grace,
            nonce=self._nonce,
            proof=proof(self._terms.run_id, "member", challenge.nonce),
        )
        self._link.send(hello)

    def _be_welcome(self, welcome: Welcome) -> None:
        if not proves(welcome.proof, self._terms.run_id, "hub", self._nonce):
            raise ValueError(f"whoever listens at {self._terms.place} does not know the rdzv_id")
        self._link.trusted = True

    # -- what the hub tells

    def _hear(self) -> None:
        try:
            for message, blob in self._link.receive():
                self._take(message, blob)
        except (ConnectionError, ValueError):
            self._lose_the_hub()

    def _take(self, message: Message, blob: bytes) -> None:
        if isinstance(message, Challenge):
            self._say_hello(message)
        elif isinstance(message, Welcome):
            self._be_welcome(message)
        elif isinstance(message, Begin):
            self._next = message
        elif isinstance(message, Settled):
            self._settle(message, blob)
        elif isinstance(message, Refused):  # too few were left to begin again
            self._give_up(message.text)
        elif self._loop is not None and isinstance(message, MayLeave):
            self._leaving = True
            self._loop.let_leave()
        elif self._loop is not None and isinstance(message, Stop):
            self._loop.stop("failure")

    def _settle(self, message: Settled, blob: bytes) -> None:
        from nbstate.errors import RankFailure

        told = [RankFailure(**failure) for failure in message.failures]
        self.failures = [failure for failure in told if failure.node != self.number]
        self.values = _split(blob, message.sizes)
        self.note, self.stopped_by, self._again = message.note, message.stopped, message.again
        self.settled = True
        if message.again:  # the next attempt's store has a port of its own
            self.meeting_point.close()

    def _lose_the_hub(self) -> None:
        from nbstate.errors import RankFailure

        assert self._loop is not None
        self._loop.forget(self._link.fileno())
        if (self._leaving and not self._options.gather_results) or (
            self.settled and not self._again
        ):
            self.settled = True
            return
        told = lost_at(self._hub_address)
        where = {"rank": 0, "node": 0, "pid": 0, "exitcode": 1, "error_file": ""}
        lost = RankFailure(**where, message=told, when=time.time_ns())  # type: ignore[arg-type]
        self.failures = [*self.failures, lost]
        self._give_up(told)

    def _give_up(self, why: str) -> None:
        """There is no next attempt, and nobody to settle with."""
        assert self._loop is not None
        if self.settled:
            self._loop.note(why)
        self.settled, self._again = True, False
        self._loop.stop("failure")

    # -- what the loop and the job ask and tell

    @property
    def number(self) -> int | None:
        return self._begun.node

    @property
    def count(self) -> int:
        return self._begun.nodes

    @property
    def offset(self) -> int:
        return self._begun.offset

    @property
    def world_size(self) -> int:
        return self._begun.world_size

    @property
    def restarts(self) -> int:
        """How often the ranks had been started before."""
        return self._begun.restarts

    @property
    def _begun(self) -> Begin:
        assert self._place is not None
        return self._place

    @property
    def descriptors(self) -> list[int]:
        ours = [] if self._hub is None else self._hub.descriptors
        return [self._link.fileno(), *ours]

    def follow(self, loop: Loop) -> None:
        self._loop = loop
        loop.listen(self._link.fileno(), self._hear)

    def returned(self) -> None:
        self._link.send(AllReturned())

    def stopping(self, reason: str) -> None:
        if not self.settled:
            self._link.send(Stopping(reason))

    def ended(self, failures: Sequence[RankFailure], returned: Mapping[int, Any]) -> None:
        blob = b""
        if self._options.gather_results and not failures:
            blob = values.dump_whole(dict(returned))
        self._link.send(Ended([failure.as_dict() for failure in failures]), blob)

    def goes_on(self) -> bool | None:
        return self._again

    def ready(self) -> bool:
        return self._next is not None

    def begin(self) -> None:
        assert self._next is not None
        self._place, self._next = self._next, None
        self.settled = self._again = False
        self.failures, self.stopped_by, self.note = (), "", ""
        if self._hub is not None:
            assert self._hub.rendezvous is not None
            self.meeting_point = self._hub.rendezvous
        else:
            self.meeting_point = Elsewhere(self._hub_address, self._place.port)

    def abandon(self) -> None:
        self.settled, self._again = True, False

    def close(self) -> None:
        self._loop = None
        self._link.close()
        if self._place is not None:
            self.meeting_point.close()
        if self._hub is not None:
            self._hub.join()


def _split(blob: bytes, sizes: Sequence[int]) -> dict[int, Any]:
    """Return every rank's value from what the nodes have sent."""
    found: dict[int, Any] = {}
    for size in sizes:
        part, blob = blob[:size], blob[size:]
        if part:
            found |= values.load(part, ())
    return found
