"""What the user sees of a job: a live board, plain text, or nothing; and the page that stays.

attach(job, kind)    in the cell that launches, before the ranks start
show(job)            the same job once more, in another cell
last_run()           the page of the run that ended last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbstate.environment import choose_view
from nbstate.view.follow import View
from nbstate.view.plain import PlainView, SilentView
from nbstate.view.publish import this_place

if TYPE_CHECKING:
    from nbstate.job import Job

__all__ = ["View", "attach"]


def attach(job: Job, kind: str) -> View:
    """Begin to show a job in the cell that runs now, and return its view.

    To be called in the thread that runs the cell, before the first rank starts.

    Parameters
    ----------
    kind
        'board', 'plain', 'silent' or 'auto': what suits the front end.
    """
    place = this_place()
    kind = choose_view(kind)
    view = SilentView(job, place) if kind == "silent" else PlainView(job, place)
    view.start()
    return view
