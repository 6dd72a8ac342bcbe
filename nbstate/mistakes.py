"""What is wrong with a call, or ended it, shown at the caller's line, without frames of nbstate."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def told_at_the_call(kind: type[BaseException] = Exception) -> Iterator[None]:
    """Have IPython show what is raised inside, if it is of a kind, at the line that called nbstate.

    For checks of what the user gave, and for interrupts. Elsewhere the frames of an error are worth
    seeing.
    """
    try:
        yield
    except kind as error:
        shown: Any = error
        # IPython asks an exception how it wants to be shown.
        shown._render_traceback_ = functools.partial(_rendered, error)
        raise


def _rendered(error: BaseException) -> list[str]:
    from IPython import get_ipython

    shell = get_ipython()
    trace = _until_ours(error.__traceback__)
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, trace)
    return lines


def _until_ours(trace: TracebackType | None) -> TracebackType | None:
    if trace is None or _is_ours(trace):
        return None
    following = _until_ours(trace.tb_next)
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "nbstate"
