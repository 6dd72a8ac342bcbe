"""Several notebooks, one on each node, that train together.

One kernel listens: that of node 0, or with ``rdzv_backend="c10d"`` the first that can bind the
endpoint. The others call there, and a connection is kept for as long as the run takes. It carries
who takes part, who has failed, and when all may leave; ranks talk to each other through torch.

Nobody polls: a message or a lost connection wakes the loop that also hears the ranks.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import time
from typing import TYPE_CHECKING

from nbstate.start.elastic.hub import Hub
from nbstate.start.elastic.link import Link
from nbstate.start.elastic.member import HungUpError, Member
from nbstate.start.elastic.terms import Terms
from nbstate.start.rendezvous import holder

if TYPE_CHECKING:
    from nbstate.options import LaunchOptions

_LONGEST_TRY = 5.0
_PAUSE = 0.25


def meet(options: LaunchOptions, ranks: int) -> Member:
    """Wait in the cell until all nodes of the run are here; no rank exists yet.

    Parameters
    ----------
    options
        Those of the launch.
    ranks
        How many ranks this node has.

    Raises
    ------
    ValueError
        This node cannot take part: its number is taken, or the notebooks do not agree.
    OSError
        The address cannot be listened at.
    TimeoutError
        Nobody could be reached there, or not all came, in time.
    ConnectionError
        The kernel that listened there has gone.
    """
    terms = Terms.of(options)
    until = time.monotonic() + terms.join_timeout
    listener = _listen(terms)
    if listener is not None:
        return _host(listener, terms, options, ranks)
    while True:
        link = Link(_call(terms, until), terms.interval, terms.attempts)
        member = Member(link, terms, options, ranks, None)
        with contextlib.suppress(HungUpError):  # a run there is about to end: call again
            return _met(member, until, _waiting(terms, options))
        time.sleep(_PAUSE)


def _host(listener: socket.socket, terms: Terms, options: LaunchOptions, ranks: int) -> Member:
    ours, hubs = socket.socketpair()
    hub = Hub(listener, terms, hubs)
    member = Member(Link(ours, terms.interval, terms.attempts), terms, options, ranks, hub)
    # The hub knows who is missing: it gives up in time, and says so.
    return _met(member, math.inf, _waiting(terms, options))


def _met(member: Member, until: float, told: str) -> Member:
    try:
        member.meet(until, lambda: print(told))  # noqa: T201 - the cell says what it waits for
    except BaseException:
        member.close()
        raise
    return member


def _waiting(terms: Terms, options: LaunchOptions) -> str:
    node = "" if terms.elastic else f"node {options.node_rank} of {terms.most}: "
    return f"{node}waiting at {terms.place} for the other notebooks"


# -- listening and calling


def _listen(terms: Terms) -> socket.socket | None:
    """Return a socket bound to the meeting point, or None where another node listens there."""
    if terms.is_host is False:
        return None
    family, _, _, _, address = _resolve(terms)
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if terms.is_host is None and error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        raise OSError(
            error.errno,
            f"{terms.place}: {error.strerror}{holder(terms.port)}; this notebook has to listen "
            "there: master_addr must be an address of this machine, and use_port free",
        ) from None
    return listener


def _call(terms: Terms, until: float) -> socket.socket:
    """Return a connection to the meeting point; the notebook there may start later than this."""
    notice: float | None = time.monotonic() + 2.0
    why = ""
    while (left := until - time.monotonic()) > 0:
        try:
            address = _resolve(terms)[4]
            return socket.create_connection(address[:2], timeout=min(left, _LONGEST_TRY))
        except OSError as error:
            why = error.strerror or "no answer"
        if notice is not None and time.monotonic() > notice:
            notice = None
            print(f"waiting for the notebook that listens at {terms.place} ({why})")  # noqa: T201
        # Nothing tells when a port of another machine opens: try it now and then.
        time.sleep(max(0.0, min(_PAUSE, until - time.monotonic())))
    raise TimeoutError(
        f"{terms.place} could not be reached within {terms.join_timeout:g} s ({why}): the notebook "
        "of node 0 listens there while its cell runs; check master_addr and use_port in both, and "
        "that no firewall is between them"
    )


def _resolve(terms: Terms) -> tuple[socket.AddressFamily, int, int, str, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(terms.host, terms.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(
            error.errno, f"no address known for {terms.host!r}: {error.strerror}"
        ) from None
    return found[0]  # type: ignore[return-value] # an IPv6 address has two more parts
