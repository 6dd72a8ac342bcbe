"""What is wrong with a call, or ended it, shown at the caller's line, without frames of nbstate."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Trim = Callable[[TracebackType | None], TracebackType | None]


@contextmanager
def told_at_the_call(kind: type[BaseException] = Exception) -> Iterator[None]:
    """Have IPython show what is raised inside, if it is of a kind, at the line that called nbstate.

    For checks of what the user gave, and for interrupts. Elsewhere the frames of an error are worth
    seeing.
    """
    with _told(kind, _until_ours):
        yield


@contextmanager
def told_without_us() -> Iterator[None]:
    """Have IPython show what the user's code inside raises without the frames between."""
    with _told(BaseException, _without_ours):
        yield


@contextmanager
def _told(kind: type[BaseException], trim: _Trim) -> Iterator[None]:
    try:
        yield
    except kind as error:
        shown: Any = error
        # IPython asks an exception how it wants to be shown.
        shown._render_traceback_ = functools.partial(_rendered, error, trim)
        raise


def _rendered(error: BaseException, trim: _Trim) -> list[str]:
    from IPython import get_ipython

    shell = get_ipython()
    trace = trim(error.__traceback__)
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, trace)
    return lines


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    return without(trace, _is_ours)


def without(
    trace: TracebackType | None, unwanted: Callable[[TracebackType], bool]
) -> TracebackType | None:
    """Return a traceback without some of its lines; None if none is left."""
    if trace is None:
        return None
    following = without(trace.tb_next, unwanted)
    return following if unwanted(trace) else _followed_by(trace, following)


def _until_ours(trace: TracebackType | None) -> TracebackType | None:
    if trace is None or _is_ours(trace):
        return None
    return _followed_by(trace, _until_ours(trace.tb_next))


def _followed_by(trace: TracebackType, following: TracebackType | None) -> TracebackType:
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "nbstate"
