"""Functions that one rank runs.

Which rank that is falls when they are called, not when they are decorated: a function decorated in
the kernel behaves in the ranks.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Outcome:
    """What a function came to: a value, or an exception."""

    value: Any = None
    error: BaseException | None = None


def run_only(
    function: Callable[..., Any] | None,
    chosen: Callable[[], bool],
    share: Callable[[Outcome | None], Any] | None,
) -> Any:
    """The function, run where `chosen` says so and returning None elsewhere; or a decorator for it.

    Parameters
    ----------
    function : callable or None
        A plain or an async function; None makes this return the decorator.
    chosen : callable
        Asked at every call whether this rank runs the function.
    share : callable, optional
        Given the outcome, or None where this rank did not run the function, has every rank return
        its value or raise its exception.
    """
    if function is None:
        return functools.partial(run_only, chosen=chosen, share=share)
    if not callable(function):
        raise TypeError(f"only a function can be decorated, not {function!r}")
    if inspect.iscoroutinefunction(function):
        return _run_only_async(function, chosen, share)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if share is None:
            return function(*args, **kwargs) if chosen() else None
        outcome = None
        if chosen():
            try:
                outcome = Outcome(function(*args, **kwargs))
            except BaseException as error:  # the others must hear of it, whatever it is
                outcome = Outcome(error=error)
        return share(outcome)

    return run


def _run_only_async(
    function: Callable[..., Any],
    chosen: Callable[[], bool],
    share: Callable[[Outcome | None], Any] | None,
) -> Any:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        if share is None:
            return await function(*args, **kwargs) if chosen() else None
        outcome = None
        if chosen():
            try:
                outcome = Outcome(await function(*args, **kwargs))
            except BaseException as error:
                outcome = Outcome(error=error)
        return share(outcome)

    return run
