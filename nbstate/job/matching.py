"""Traced collectives of all ranks, compared before they begin: a mismatch raises, and says why.

Every rank announces what it is about to call and waits. Once all members of the group agree, all go
on; as soon as two do not, or one has returned, those that wait raise and say what each has called.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbstate.wire import Announced, Verdict, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Callable

LONELY_AFTER = 5.0
"""Seconds after which a collective that not all members have called yet is told of."""


@dataclass
class Call:
    """One collective of one group: who has announced what."""

    members: tuple[int, ...]
    said: dict[int, Announced] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    wrong: str = ""
    told: bool = False

    @property
    def missing(self) -> list[int]:
        """The members that have not announced it."""
        return [rank for rank in self.members if rank not in self.said]


class Matcher:
    """Compares what the ranks of a run announce.

    Parameters
    ----------
    send
        Sends one rank its verdict.
    """

    def __init__(self, send: Callable[[int, Verdict], None]) -> None:
        self._send = send
        self._calls: dict[tuple[str, int], Call] = {}
        self._returned: set[int] = set()

    def take(self, rank: int, message: Announced) -> None:
        """A rank is about to call a collective."""
        key = (message.group, message.collective.number)
        call = self._calls.setdefault(key, Call(message.collective.members))
        call.said[rank] = message
        if not call.wrong:
            call.wrong = self._wrong_with(call)
            if call.wrong:
                self._answer(call, [other for other in call.said if other != rank])
        if call.wrong:
            self._answer(call, [rank])
        elif not call.missing:
            self._answer(call, list(call.said))
            del self._calls[key]

    def withdraw(self, rank: int, message: Withdrawn) -> None:
        """A rank that waited does so no more."""
        key = (message.group, message.number)
        call = self._calls.get(key)
        if call is not None:
            call.said.pop(rank, None)
            if not call.said:
                del self._calls[key]

    def returned(self, rank: int) -> None:
        """A rank has returned: whoever waits for it in a collective waits in vain."""
        self._returned.add(rank)
        for call in self._calls.values():
            if rank in call.missing and not call.wrong:
                call.wrong = self._wrong_with(call)
                self._answer(call, list(call.said))

    def lonely(self, doing: Callable[[int], str]) -> list[str]:
        """Return a line for each collective that some members have not come to for a while."""
        now = time.monotonic()
        found = []
        for call in self._calls.values():
            if now - call.since >= LONELY_AFTER and not (call.told or call.wrong):
                call.told = True
                waiting = "; ".join(f"rank {rank} {doing(rank)}" for rank in call.missing)
                found.append(f"{_table(call)}\nwait for a member that has not come: {waiting}")
        return found

    def _wrong_with(self, call: Call) -> str:
        if len({message.key for message in call.said.values()}) > 1:
            return f"the ranks call different collectives:\n{_table(call)}"
        gone = [rank for rank in call.missing if rank in self._returned]
        if gone:
            who = ", ".join(map(str, gone))
            return f"a collective that rank {who} never calls: it has returned:\n{_table(call)}"
        return ""

    def _answer(self, call: Call, ranks: list[int]) -> None:
        for rank in ranks:
            if call.said[rank].waits:
                self._send(rank, Verdict(call.wrong))


def _table(call: Call) -> str:
    """Return one line for each different thing that was called, and who called it."""
    rows: dict[tuple[str, str], list[int]] = {}
    for rank, message in sorted(call.said.items()):
        rows.setdefault((str(message.collective), message.collective.where), []).append(rank)
    return "\n".join(
        f"  rank {', '.join(map(str, ranks))}: {what} ({where})"
        for (what, where), ranks in rows.items()
    )
