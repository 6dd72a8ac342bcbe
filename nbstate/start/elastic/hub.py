"""Where the kernels of a run meet, and what concerns all of them is passed on.

    kernel of node 0                                    kernel of node 1
    loop -- Member == socket pair == Hub == connection == Member -- loop
                                      ||
                                      == connection == Member of node 2 ...

The hub is a thread in the kernel that holds the meeting point, and ends with its own member. It
knows the nodes of a run and how far each is:

    meeting   nodes come; once there are enough, all are told to begin
    running   a failure, a loss, a stop or a newcomer leads to "settling"; all returned: "leaving"
    leaving   every node's ranks have returned and may leave
    settling  every node ends its ranks; once all have, the run is over or all meet again

Who may die, and who notices: a node, by its link; this kernel, by every other node's link.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

from nbstate.start.elastic.guest import Guest
from nbstate.start.elastic.link import Link
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
    proof,
    proves,
)
from nbstate.start.rendezvous import Rendezvous

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nbstate.start.elastic.messages import Message
    from nbstate.start.elastic.terms import Terms

Phase = Literal["meeting", "running", "leaving", "settling"]

SLACK = 10.0
"""Seconds beyond its grace in which a node must have told that its ranks are gone."""


class Hub:
    """Brings the nodes of one run together. Made and started by the node that listens.

    Parameters
    ----------
    listener
        A bound socket, on which the other nodes call.
    terms
        What all nodes must agree on.
    own
        The hub's end of a socket pair; the member of this kernel has the other one.
    """

    def __init__(self, listener: socket.socket, terms: Terms, own: socket.socket) -> None:
        self.address: str = listener.getsockname()[0]
        self.rendezvous: Rendezvous | None = None
        self._listener = listener
        self._terms = terms
        self._phase: Phase = "meeting"
        self._guests: list[Guest] = []  # all that have called, strangers too
        self._members: list[Guest] = []
        self._late: list[Guest] = []
        self._gone: list[dict[str, Any]] = []
        self._changes: list[str] = []
        self._changes_came_first = False
        self._stopped: tuple[Guest, str] | None = None
        self._leaver: Guest | None = None
        self._restarts = 0
        self._restarts_left = terms.max_restarts
        self._over = False
        self._deadline: tuple[float, Callable[[], None]] | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._host = self._admit(own, self.address)
        self._wait_for_members()
        self._thread = threading.Thread(target=self._run, name="nbstate-hub", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until every node has been told how the run ended."""
        self._thread.join()

    @property
    def descriptors(self) -> list[int]:
        """What no rank may hold."""
        found = [self._listener.fileno(), *(guest.link.fileno() for guest in list(self._guests))]
        return [descriptor for descriptor in found if descriptor >= 0]

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._over:
                for key, _ in self._selector.select(self._until_deadline()):
                    if key.fd in self._selector.get_map():
                        key.data()
                self._meet_deadline()
        finally:
            for guest in self._guests:
                guest.link.close()
            self._listener.close()
            self._selector.close()

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._deadline = (time.monotonic() + seconds, action)

    def _until_deadline(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline[0] - time.monotonic())

    def _meet_deadline(self) -> None:
        if self._deadline is not None and self._deadline[0] <= time.monotonic():
            action, self._deadline = self._deadline[1], None
            action()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has hung up again
            connected, address = self._listener.accept()
            self._admit(connected, address[0])

    def _admit(self, connected: socket.socket, address: str) -> Guest:
        guest = Guest(Link(connected, self._terms.interval, self._terms.attempts), address)
        self._guests.append(guest)
        self._selector.register(guest.link, selectors.EVENT_READ, lambda: self._hear(guest))
        guest.link.send(Challenge(guest.nonce))
        return guest

    def _hear(self, guest: Guest) -> None:
        try:
            for message, blob in guest.link.receive():
                self._take(guest, message, blob)
        except (ConnectionError, ValueError):
            self._lose(guest)

    def _take(self, guest: Guest, message: Message, blob: bytes) -> None:
        if isinstance(message, Hello) and guest.hello is None:
            self._greet(guest, message)
        elif guest.hello is None:
            raise ValueError("a stranger")
        elif isinstance(message, AllReturned):
            guest.returned = True
            self._let_leave_if_all_returned()
        elif isinstance(message, Stopping):
            self._stopping(guest, message.reason)
        elif isinstance(message, Ended):
            guest.ended, guest.values = message, blob
            self._settle_if_all_ended()

    # -- meeting

    def _greet(self, guest: Guest, hello: Hello) -> None:
        if self._is_ending():
            self._hang_up(guest)  # it calls again, and finds the next run
            return
        refusal = self._refusal(guest, hello)
        if refusal:
            guest.link.send(Refused(refusal))
            self._hang_up(guest)
            return
        guest.hello, guest.link.trusted = hello, True
        guest.link.send(Welcome(proof(self._terms.run_id, "hub", hello.nonce)))
        if self._phase == "meeting":
            self._members.append(guest)
            self._wait_for_members()
        else:
            self._late.append(guest)
            self._changes.append(f"{guest.name} joins")
            self._stop(None)

    def _is_ending(self) -> bool:
        if self._phase == "leaving" or any(member.returned for member in self._members):
            return True
        return self._phase == "settling" and not self._terms.elastic

    def _refusal(self, guest: Guest, hello: Hello) -> str:
        if not proves(hello.proof, self._terms.run_id, "member", guest.nonce):
            return "rdzv_id is another one there: give all notebooks of a run the same"
        for name, ours in self._terms.shared.items():
            theirs = hello.terms.get(name)
            if theirs != ours:
                return f"{name}={_said(theirs)}, but {name}={_said(ours)} there: all must agree"
        if not self._terms.elastic:
            return self._rank_taken(hello)
        if len(self._members) + len(self._late) == self._terms.most:
            return f"num_nodes={_said(self._terms.shared['num_nodes'])}, and all are there already"
        return ""

    def _rank_taken(self, hello: Hello) -> str:
        for member in self._members:
            if member.said.node_rank == hello.node_rank:
                taken = f"node_rank={hello.node_rank} is taken by the notebook at {member.address}"
                return f"{taken}: each of the {self._terms.most} needs its own"
        return ""

    def _wait_for_members(self) -> None:
        here, enough = len(self._members), self._terms.least
        if here == self._terms.most or (here >= enough and self._restarts):
            self._begin()
        elif here >= enough:
            self._in(self._terms.last_call, self._begin)
        else:
            self._in(self._terms.join_timeout, self._give_up)

    def _give_up(self) -> None:
        count = f"{len(self._members)} of {self._terms.least} nodes"
        told = f"{count} had come within {self._terms.join_timeout:g} s"
        for guest in self._members:
            guest.link.send(Refused(told + self._missing(), late=True))
        self._over = True

    def _missing(self) -> str:
        if self._terms.elastic:
            return ""
        here = {m.said.node_rank for m in self._members}
        missing = [str(rank) for rank in range(self._terms.most) if rank not in here]
        return f"; missing: node_rank {', '.join(missing)}"

    def _begin(self) -> None:
        if not self._terms.elastic:
            self._members.sort(key=lambda m: m.said.node_rank)
        elif self._host in self._members:  # node 0 is where rank 0's store is
            self._members.sort(key=lambda m: m is not self._host)
        self._deadline = None
        self._phase = "running"
        self.rendezvous = Rendezvous(self.address, None)
        sizes = [m.said.local_ranks for m in self._members]
        for node, member in enumerate(self._members):
            member.returned, member.ended, member.values = False, None, b""
            member.begin = Begin(
                node=node,
                nodes=len(sizes),
                offset=sum(sizes[:node]),
                world_size=sum(sizes),
                port=self.rendezvous.port,
                restarts=self._restarts,
            )
        for member in self._members:
            assert member.begin is not None
            member.link.send(member.begin)

    # -- running

    def _let_leave_if_all_returned(self) -> None:
        if self._phase == "running" and all(member.returned for member in self._members):
            self._phase = "leaving"
            for member in self._members:
                member.link.send(MayLeave())

    def _stopping(self, guest: Guest, reason: str) -> None:
        if reason != "failure" and self._stopped is None:
            if self._terms.elastic and guest is not self._host:
                self._leaver = guest
                self._changes.append(f"{guest.name} leaves")
            else:
                self._stopped = (guest, reason)
        self._stop(guest)

    def _stop(self, by: Guest | None) -> None:
        if self._phase != "running":
            return
        self._phase = "settling"
        self._changes_came_first = bool(self._changes)
        for member in self._members:
            if member is not by:
                member.link.send(Stop())
        grace = max(m.said.grace for m in self._members)
        self._in(grace + SLACK, self._lose_who_has_not_ended)

    def _lose(self, guest: Guest) -> None:
        self._hang_up(guest)
        if guest is self._host:
            self._over = True
        elif guest in self._late:
            self._late.remove(guest)
        elif guest in self._members:
            self._members.remove(guest)
            self._go_on_without(guest)

    def _go_on_without(self, guest: Guest) -> None:
        if self._phase == "meeting":
            self._wait_for_members()
            return
        if self._phase != "leaving" and guest.ended is None and guest is not self._leaver:
            self._gone += guest.lost()
            self._changes.append(f"{guest.name} is gone")
        self._stop(None)
        self._settle_if_all_ended()

    def _lose_who_has_not_ended(self) -> None:
        for guest in [member for member in self._members if member.ended is None]:
            self._lose(guest)

    def _hang_up(self, guest: Guest) -> None:
        self._guests.remove(guest)
        self._selector.unregister(guest.link)
        guest.link.close()

    # -- the end of a run, or of one attempt

    def _settle_if_all_ended(self) -> None:
        if self._phase in ("leaving", "settling") and all(m.ended for m in self._members):
            self._settle()

    def _settle(self) -> None:
        ended = [member.ended for member in self._members if member.ended is not None]
        failures = self._gone + [failure for end in ended for failure in end.failures]
        again = self._is_to_go_on(failures)
        note = self._note() if self._changes_count else ""
        blob = b"".join(member.values for member in self._members)
        sizes = [len(member.values) for member in self._members]
        for member in self._members:
            goes_on = again and member is not self._leaver
            stopped = self._stopper_for(member)
            member.link.send(Settled(failures, goes_on, note, stopped, sizes), blob)
        self._over = not again
        if again:
            self._meet_again()

    def _rest(self) -> list[Guest]:
        """Return who takes part in the next attempt."""
        return [m for m in self._members if m is not self._leaver] + self._late

    def _note(self) -> str:
        few = len(self._rest()) < self._terms.least
        waiting = [f"waiting for others at {self._terms.place}"] if few else []
        return "; ".join(self._changes + waiting)

    def _is_to_go_on(self, failures: list[dict[str, Any]]) -> bool:
        if self._phase == "leaving" or self._stopped is not None:
            return False
        if self._changes_count:
            return True
        failed = any(not failure.get("secondary", False) for failure in failures)
        if not failed or self._gone or not self._restarts_left:
            return False
        self._restarts_left -= 1
        return True

    @property
    def _changes_count(self) -> bool:
        """Whether the attempt ended because nodes came or went.

        That a node is gone may be known only after the ranks that it left have failed for it.
        """
        return self._terms.elastic and (self._changes_came_first or bool(self._gone))

    def _stopper_for(self, member: Guest) -> str:
        if self._stopped is None or self._stopped[0] is member:
            return ""
        guest, reason = self._stopped
        return f"its timeout on {guest.name}" if reason == "timeout" else guest.name

    def _meet_again(self) -> None:
        self._restarts += 1
        self._members = self._rest()
        self._late, self._gone, self._changes, self._leaver = [], [], [], None
        self._phase = "meeting"
        self._wait_for_members()


def _said(value: Any) -> str:
    """Return an agreed value as the user wrote it: JSON has made a list of a tuple."""
    return repr(tuple(value) if isinstance(value, list) else value)
