"""Traced collectives of all ranks, compared before they begin: a mismatch raises, and says why.

Every rank announces what it is about to call and waits. Once all members of the group agree, all go
on; as soon as two do not, or one will not come, those that wait raise and say what each has called.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbstate.wire import Announced, Verdict, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        self._absent: dict[int, str] = {}  # ranks that come to no collective any more, and why

    def begin(self, absent: Mapping[int, str]) -> None:
        """Ranks that stay begin something new, but for those that are `absent`, with the reason."""
        self._calls.clear()
        self._absent = dict(absent)

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

    def returned(self, rank: int, why: str = "it has returned") -> None:
        """A rank is done: whoever waits for it in a collective waits in vain."""
        self._absent[rank] = why
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
                head = f"a collective that not all have come to within {LONELY_AFTER:g} s:"
                tail = f"wait for a member that has not come: {waiting}"
                found.append(f"{head}\n{_table(call)}\n{tail}")
        return found

    def _wrong_with(self, call: Call) -> str:
        if len({message.key for message in call.said.values()}) > 1:
            return f"the ranks call different collectives:\n{_table(call)}"
        gone: dict[str, list[str]] = {}
        for rank in call.missing:
            if rank in self._absent:
                gone.setdefault(self._absent[rank], []).append(str(rank))
        if not gone:
            return ""
        told = [f"rank {', '.join(ranks)} never calls: {why}" for why, ranks in gone.items()]
        return f"a collective that {' and '.join(told)}:\n{_table(call)}"

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
