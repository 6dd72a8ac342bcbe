"""Why a run could not be started, where the system's own words do not say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def explained(ranks: int) -> Iterator[None]:
    """Give an error at a limit a text that says which limit it is, and how to raise it.

    Raises
    ------
    OSError
        As inside; with another text where a limit was reached.
    """
    try:
        yield
    except OSError as error:
        told = _told(error.errno)
        if told is None:
            raise
        which = f"the {ranks} ranks could not be started" if ranks > 1 else "the rank could not be"
        text = f"{error.strerror}: {which}: {told}. None is left behind"
        raise OSError(error.errno, text).with_traceback(error.__traceback__) from None


def _told(number: int | None) -> str | None:
    if number in (errno.EMFILE, errno.ENFILE):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"this process may have {limit} files open; ulimit -n tells and sets it"
    if number == errno.EAGAIN:
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        allowed = "a limited number of" if limit == resource.RLIM_INFINITY else str(limit)
        return f"this user may have {allowed} processes and threads; ulimit -u tells and sets it"
    if number == errno.ENOMEM:
        return "there is no memory for another process"
    return None


def try_descriptors(count: int) -> None:
    """Open and close a few files.

    Raises
    ------
    OSError
        This process may not have so many more.
    """
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        while len(opened) < count:
            opened.append(os.dup(opened[0]))
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Give what torch's C++ code raises at a limit its number back.

    Raises
    ------
    OSError
        No further thread could be started.
    """
    try:
        yield
    except RuntimeError as error:
        text = os.strerror(errno.EAGAIN)
        if text not in str(error):
            raise
        raise OSError(errno.EAGAIN, text) from error
