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
from nbstate.view.publish import Cell, this_place

if TYPE_CHECKING:
    from nbstate.job import Job
    from nbstate.view.publish import Place

__all__ = ["View", "attach"]


def attach(job: Job, kind: str) -> View:
    """Begin to show a job in the cell that runs now, and return its view.

    To be called in the thread that runs the cell, before the first rank starts.

    Parameters
    ----------
    kind
        'board', 'plain', 'silent' or 'auto': what suits the front end.
    """
    view = _view(job, choose_view(kind), this_place())
    view.start()
    return view


def _view(job: Job, kind: str, place: Place) -> View:
    if kind == "silent":
        return SilentView(job, place)
    if kind == "board" and isinstance(place, Cell):
        try:
            from nbstate.view.board import BoardView

            return BoardView(job, place)
        except ImportError:  # no anywidget here
            pass
    return PlainView(job, place)
