"""What the kernels of a run on several nodes tell each other.

Plain data that travels as JSON: whatever a stranger sends, reading it can do no harm. The values of
`gather_results` go beside it as bytes, and are only unpickled where both sides have proven that
they know the run's id.

    hub    -> member:  Challenge, Welcome or Refused, Begin, Stop or MayLeave, Settled
    member -> hub:     Hello, then AllReturned or Stopping, and Ended
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Challenge:
    """The first word of a hub: prove that you know the run's id."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Hello:
    """A kernel wants to take part. What must be equal on all nodes stands in `terms`."""

    terms: dict[str, Any]
    node_rank: int
    local_ranks: int
    grace: float
    nonce: str
    proof: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The kernel takes part; the hub knows the run's id too."""

    proof: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The kernel cannot take part, or all wait in vain; `late` where that is a matter of time."""

    text: str
    late: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Everybody is here: start your ranks. They meet at `port` of the hub's address."""

    node: int
    nodes: int
    offset: int
    world_size: int
    port: int
    restarts: int


@dataclass(frozen=True, slots=True)
class AllReturned:
    """The function has returned on all of a node's ranks."""


@dataclass(frozen=True, slots=True)
class MayLeave:
    """It has on every node: let the ranks leave."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """A node ends its ranks: one has failed, the user has stopped it, or the time is up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End your ranks: those of another node have failed, or the nodes change."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The ranks of a node are gone; `failures` are the arguments of a `RankFailure` each."""

    failures: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Settled:
    """All ranks of all nodes are gone.

    `again`: the next `Begin` follows, and `note` says why. `stopped` names who has stopped the run.
    `sizes` are the lengths of the nodes' values, which follow.
    """

    failures: list[dict[str, Any]]
    again: bool
    note: str
    stopped: str
    sizes: list[int]


Message = (
    Challenge
    | Hello
    | Welcome
    | Refused
    | Begin
    | AllReturned
    | MayLeave
    | Stopping
    | Stop
    | Ended
    | Settled
)

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in Message.__args__}
_TYPES: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def encode(message: Message) -> bytes:
    """Return a message as JSON."""
    return json.dumps([type(message).__name__, dataclasses.asdict(message)]).encode()


def decode(data: bytes) -> Message:
    """Return the message that `encode` made this of.

    Raises
    ------
    ValueError
        It is none.
    """
    try:
        name, values = json.loads(data)
        message: Message = _KINDS[name](**values)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a message of a node: {error!r}") from None
    for field in dataclasses.fields(message):
        kind = _TYPES.get(str(field.type), (dict, list))
        if not isinstance(getattr(message, field.name), kind):
            raise ValueError(  # noqa: TRY004 - a stranger's mistake, not a caller's
                f"not a message of a node: {name}.{field.name}"
            )
    return message


def lost_at(address: str) -> str:
    """Say how a rank failed whose kernel is not heard of any more."""
    return f"lost with its kernel at {address}, which has ended or cannot be reached"


def proof(run_id: str, who: str, nonce: str) -> str:
    """Return what only one who knows the run's id can answer to a nonce."""
    return hmac.new(run_id.encode(), f"{who} {nonce}".encode(), hashlib.sha256).hexdigest()


def proves(told: str, run_id: str, who: str, nonce: str) -> bool:
    """Tell whether an answer to a nonce is the right one."""
    return hmac.compare_digest(told.encode(), proof(run_id, who, nonce).encode())
