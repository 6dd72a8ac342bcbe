"""The nodes of a run, as its job and loop know them: `OneNode`, or `elastic.Member` for several.

Both have the same parts, told of at `OneNode`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from nbstate.start.rendezvous import Rendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbstate.errors import RankFailure
    from nbstate.job.loop import Loop
    from nbstate.options import LaunchOptions
    from nbstate.start.elastic.member import Elsewhere, Member

Nodes: TypeAlias = "OneNode | Member"
MeetingPoint: TypeAlias = "Rendezvous | Elsewhere"


class OneNode:
    """A run on this machine alone: nobody to ask, nobody to wait for.

    Attributes
    ----------
    number, count
        Which node this is, of how many; `number` is None where there is only ever one.
    offset, world_size
        The global rank of the first rank here, and how many ranks there are in all.
    restarts
        How often the ranks had been started before this node took part.
    run_id
        The run's name in ``TORCHELASTIC_RUN_ID``; ``""`` where that is the job's own matter.
    address
        This node's own, as the others reach it.
    meeting_point
        Where the ranks meet.
    failures, values
        What the other nodes' ranks failed of and returned; known once `settled`.
    stopped_by
        Which other node has stopped the run, or ``""``.
    settled
        Whether the ranks of every node are gone, and how they ended is known.
    note
        Why the ranks are started anew, beyond a failure of one.
    clock
        What to add to this machine's monotonic clock to compare it with other nodes', nanoseconds.
    descriptors
        The kernel's ends of connections to other nodes: no rank may hold them.

    Raises
    ------
    OSError
        The port is taken, or the address is none of this machine's.
    """

    count = 1
    offset = restarts = clock = 0
    stopped_by = note = ""
    settled = True
    descriptors: Sequence[int] = ()
    failures: Sequence[RankFailure] = ()
    values: Mapping[int, Any] = {}

    def __init__(self, ranks: int, options: LaunchOptions) -> None:
        self.number: int | None = None
        self.world_size = ranks
        self.address, port = options.endpoint
        self.run_id = "" if options.rdzv_id == "none" else options.rdzv_id
        self.meeting_point = Rendezvous(self.address, port)
        self._loop: Loop | None = None

    def follow(self, loop: Loop) -> None:
        """Be heard by this loop from now on."""
        self._loop = loop

    def returned(self) -> None:
        """All ranks here have returned: the loop is told once they may leave."""
        if self._loop is not None:
            self._loop.let_leave()

    def stopping(self, reason: str) -> None:
        """The ranks here are being ended."""

    def ended(self, failures: Sequence[RankFailure], returned: Mapping[int, Any]) -> None:
        """The ranks here are gone; these failed, and the others returned these values."""

    def goes_on(self) -> bool | None:
        """Whether all nodes begin again, now that they have settled; None: the job decides it."""
        return None

    def ready(self) -> bool:
        """Whether the ranks of the next attempt may be started."""
        return True

    def begin(self) -> None:
        """The ranks are started anew, where they have not met."""
        self.meeting_point.renew()

    def abandon(self) -> None:
        """Wait for no other node any longer."""

    def close(self) -> None:
        """The run is over."""
        self._loop = None
        self.meeting_point.close()
