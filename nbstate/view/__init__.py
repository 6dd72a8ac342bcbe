"""What the user sees of a job: a live board, plain text, or nothing; and the page that stays.

attach(job, kind)    in the cell that launches, before the ranks start
show(job)            the same job once more, in another cell
last_run()           the page of the run that ended last
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from nbstate.environment import choose_view, running_shell
from nbstate.relay import Relay
from nbstate.view.board import BoardView
from nbstate.view.follow import View
from nbstate.view.page import Page, make_page
from nbstate.view.plain import PlainView, SilentView
from nbstate.view.publish import Cell, this_place

if TYPE_CHECKING:
    from nbstate.job import Job
    from nbstate.view.publish import Place

__all__ = ["Page", "View", "attach", "last_run", "show"]

_views: weakref.WeakValueDictionary[int, View] = weakref.WeakValueDictionary()
"""The views of jobs by number: a view lives as long as its thread, and then only its page does."""


def attach(job: Job, kind: str) -> View:
    """Begin to show a job in the cell that runs now, and return its view.

    To be called in the thread that runs the cell, before the first rank starts.

    Parameters
    ----------
    kind
        'board', 'plain', 'silent' or 'auto': what suits the front end.
    """
    place = this_place()
    view = _view(job, choose_view(kind), place)
    view.widgets = Relay(job, place, live=isinstance(view, BoardView)).widgets
    _views[job.number] = view
    shell = running_shell()
    if shell is not None:  # a job as the last line of a cell
        shell.display_formatter.ipython_display_formatter.for_type(type(job), show)
    view.start()
    return view


def show(job: Job) -> None:
    """Show a job in the cell that runs now: an equal board while it runs, its page afterwards."""
    place = this_place()
    view = _views.get(job.number)
    if isinstance(view, BoardView) and isinstance(place, Cell) and view.show_again(place):
        return
    page = job.page or make_page(job, view.widgets if view is not None else None)
    place.show(page.bundle())


def last_run() -> Page:
    """Return the page of the run that ended last in this kernel; a cell shows it.

    Returns
    -------
    Page
        Shows itself as the last line of a cell; ``print`` gives its text.

    Raises
    ------
    RuntimeError
        No run has ended yet.

    Examples
    --------
    >>> results = notebook_launcher(abs, (-1,), num_processes=2)
    >>> print(last_run())
    abs: done on 2 ranks
    rank 0: done
    rank 1: done
    """
    if View.last_page is None:
        raise RuntimeError("no run has ended in this kernel yet: launch one first")
    return View.last_page


def _view(job: Job, kind: str, place: Place) -> View:
    if kind == "silent":
        return SilentView(job, place)
    if kind == "board" and isinstance(place, Cell):
        try:
            return BoardView(job, place)
        except ImportError:  # anywidget or ipywidgets is missing: text
            return PlainView(job, place)
    return PlainView(job, place)
