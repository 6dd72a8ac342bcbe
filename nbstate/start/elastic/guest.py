"""A kernel that has called at the hub, and what the hub knows of it."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from nbstate.start.elastic.messages import Begin, Ended, Hello, lost_at

if TYPE_CHECKING:
    from nbstate.start.elastic.link import Link


class Guest:
    """A kernel that has connected; it takes part once it has said hello."""

    def __init__(self, link: Link, address: str) -> None:
        self.link = link
        self.address = address
        self.nonce = secrets.token_hex(16)
        self.hello: Hello | None = None
        self.begin: Begin | None = None
        self.returned = False
        self.ended: Ended | None = None
        self.values = b""

    @property
    def said(self) -> Hello:
        """Its hello, of one that takes part."""
        assert self.hello is not None
        return self.hello

    @property
    def name(self) -> str:
        """What to call it in a sentence."""
        node = "a node" if self.begin is None else f"node {self.begin.node}"
        return f"{node} ({self.address})"

    def lost(self) -> list[dict[str, Any]]:
        """Return the failures of its ranks, which are gone with it."""
        assert self.begin is not None
        first = self.begin.offset
        return [
            {
                "rank": rank,
                "message": lost_at(self.address),
                "when": time.time_ns(),
                "node": self.begin.node,
            }
            | {"pid": 0, "exitcode": 1, "error_file": ""}
            for rank in range(first, first + self.said.local_ranks)
        ]
