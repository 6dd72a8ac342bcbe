"""Sessions that nothing refers to any more: their ranks end.

    garbage collector --put--> queue --> a thread: the ranks leave

The collector may come in the middle of anything, also of what holds a lock that the end of ranks
needs. To put something into this kind of queue is safe even then.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbstate.session.team import Team

_given_up: queue.SimpleQueue[Team] = queue.SimpleQueue()


def end_when_dropped(session: object, team: Team) -> weakref.finalize[Any, Any]:
    """Have a team leave when nothing refers to its session; ``detach()`` calls that off."""
    _start_to_end_them()
    found = weakref.finalize(session, _give_up, team, os.getpid())
    found.atexit = False  # the jobs end their ranks themselves then
    return found


def _give_up(team: Team, kernel: int) -> None:
    if os.getpid() == kernel:  # a rank has the kernel's variables, and may drop them
        _given_up.put(team)


@functools.cache
def _start_to_end_them() -> None:
    threading.Thread(target=_end_them, name="nbstate-dropped", daemon=True).start()


def _end_them() -> None:
    while True:
        team = _given_up.get()
        team.leave("nothing referred to its session any more")
        team.join()
        del team  # or it would stay until the next one comes
