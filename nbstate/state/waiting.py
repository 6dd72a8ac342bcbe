"""Ranks that wait for one another through the process group's store.

A barrier of the group is a collective and has its timeout: an hour of preparation on rank 0 would
end everybody. Here a rank writes into the store that it has come and looks, ever less often, if
the others have. That has no limit of its own, can be interrupted, and tells who is missing.

Keys, all under ``nbstate/``:

    arrived/<rank>      how many barriers this rank has come to
    arrived             the sum of these; at n times the world size barrier n opens
    open/<n>            barrier n is open
    turn/<name>/<rank>  how many turns of this name the rank has taken part in
    word/<name>/<n>     what the rank whose turn n it was left for the others
    read/<name>/<n>     how many of the others have read it
    round/<rank>        how many rounds of telling the rank has begun
    said/<n>/<rank>     what it said in round n
    gone/<rank>         this rank comes to nothing any more: its function has returned

Counting in the store and not in the process keeps ranks in step across resets of their states.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.distributed_c10d import Store

# Seconds of waiting before the first notice; each further one comes after twice the time.
FIRST_NOTICE = 5.0
# The pause between two looks grows with the time waited, from a quick answer to no load at all.
_SHORTEST, _LONGEST, _SHARE = 0.0005, 0.1, 0.05


class Waiting(Protocol):
    """The three ways of one rank to wait for others."""

    def for_everyone(self, timeout: float | None = None) -> None:
        """Return once every rank has called this as often as this one."""

    def leave_word(self, name: str, text: str, readers: int | None) -> None:
        """Release those that wait for this rank's turn, telling them what went wrong.

        `readers` is how many they are, None where that is not known.
        """

    def await_word(self, name: str, speaker: int, readers: int | None) -> str:
        """What the rank `speaker` left at its turn, once it has."""
        raise NotImplementedError

    def tell_everyone(self, text: str, doing: str, timeout: float) -> list[str]:
        """Every rank's text; `doing` is for the notice of a rank that waits alone."""
        raise NotImplementedError

    def leave(self) -> None:
        """Have whoever waits for this rank know that it comes no more."""


class RoundWaiting:
    """Waits made of rounds in which all exchange bytes, where there is no store: XLA and MPI."""

    def __init__(self, exchange: Callable[[bytes], list[bytes]]) -> None:
        self._exchange = exchange

    def for_everyone(self, timeout: float | None = None) -> None:
        if timeout is not None:
            raise ValueError(f"timeout={timeout:g}: waiting under XLA or MPI cannot be limited")
        self._exchange(b"")

    def leave_word(self, name: str, text: str, readers: int | None) -> None:
        self._exchange(text.encode())

    def await_word(self, name: str, speaker: int, readers: int | None) -> str:
        return self._exchange(b"")[speaker].decode()

    def tell_everyone(self, text: str, doing: str, timeout: float) -> list[str]:
        return [each.decode() for each in self._exchange(text.encode())]

    def leave(self) -> None:
        """Nobody could be told without a round of all."""


class StoreWaiting:
    """Waits through a store that all ranks read and write.

    Parameters
    ----------
    store : torch.distributed.Store
        What all ranks read and write.
    rank, world_size : int
        This rank, and of how many.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size

    def for_everyone(self, timeout: float | None = None) -> None:
        turn = self._add(f"arrived/{self._rank}")
        if self._add("arrived") == turn * self._world_size:
            self._set(f"open/{turn}")
        else:
            try:
                self._until(f"open/{turn}", lambda: self._missing(turn), timeout)
            except BaseException:
                self._withdraw(turn)
                raise
        if self._rank == 0:
            # Nobody looks at the barrier before: all have left it to come to this one.
            self._delete(f"open/{turn - 1}")

    def leave_word(self, name: str, text: str, readers: int | None) -> None:
        turn = self._add(f"turn/{name}/{self._rank}")
        if readers != 0:
            self._set(f"word/{name}/{turn}", text)

    def await_word(self, name: str, speaker: int, readers: int | None) -> str:
        turn = self._add(f"turn/{name}/{self._rank}")
        word = f"word/{name}/{turn}"
        self._until(word, lambda: [speaker], None)
        text = self._get(word)
        # Where it is not known how many read, nobody is the last, and the word stays.
        if self._add(f"read/{name}/{turn}") == readers:
            self._delete(word)
            self._delete(f"read/{name}/{turn}")
        return text

    def tell_everyone(self, text: str, doing: str, timeout: float) -> list[str]:
        turn = self._add(f"round/{self._rank}")
        self._set(f"said/{turn}/{self._rank}", text)
        texts = []
        for rank in range(self._world_size):
            said = f"said/{turn}/{rank}"
            self._until(said, lambda rank=rank: [rank], timeout, doing)  # type: ignore[misc]
            texts.append(self._get(said))
        # Whoever hears a text of this round has read all of the one before.
        self._delete(f"said/{turn - 1}/{self._rank}")
        return texts

    def leave(self) -> None:
        self._set(f"gone/{self._rank}")

    def _until(
        self,
        key: str,
        missing: Callable[[], list[int]],
        timeout: float | None,
        doing: str = "",
    ) -> None:
        began = time.monotonic()
        notice_after = FIRST_NOTICE
        # Not Store.wait: it cannot be interrupted, and holds up other threads that need the store.
        while not self._store.check([_full(key)]):
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                raise TimeoutError(
                    f"rank {self._rank} waited {timeout:g} s for {_names(missing())}, "
                    f"which did not come; give a longer timeout, or none to wait without limit"
                )
            if waited >= notice_after:
                notice_after *= 2
                self._check_not_in_vain(missing())
                self._notice(doing, missing(), waited)
            time.sleep(min(max(waited * _SHARE, _SHORTEST), _LONGEST))

    def _check_not_in_vain(self, missing: list[int]) -> None:
        gone = [rank for rank in missing if self._store.check([_full(f"gone/{rank}")])]
        if gone:
            raise RuntimeError(
                f"rank {self._rank} waits for {_names(gone)}, whose function has returned: "
                "every rank must come here"
            )

    def _notice(self, doing: str, missing: list[int], waited: float) -> None:
        told = f"rank {self._rank} {doing}".rstrip()
        since = _duration(waited)
        print(  # noqa: T201, it belongs among the rank's own words
            f"{told} is waiting for {_names(missing)} since {since}", file=sys.stderr, flush=True
        )

    def _missing(self, turn: int) -> list[int]:
        ranks = range(self._world_size)
        return [rank for rank in ranks if self._add(f"arrived/{rank}", 0) < turn]

    def _withdraw(self, turn: int) -> None:
        """Take back an arrival that was not waited out, unless the barrier has opened since."""
        if self._add("arrived", -1) == turn * self._world_size - 1:
            self._add("arrived")
        else:
            self._add(f"arrived/{self._rank}", -1)

    def _add(self, key: str, amount: int = 1) -> int:
        return int(self._store.add(_full(key), amount))

    def _set(self, key: str, text: str = "") -> None:
        self._store.set(_full(key), text)

    def _get(self, key: str) -> str:
        return str(self._store.get(_full(key)).decode())

    def _delete(self, key: str) -> None:
        self._store.delete_key(_full(key))


def _full(key: str) -> str:
    return f"nbstate/{key}"


def _names(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
