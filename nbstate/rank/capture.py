"""A rank's standard streams: pipes to the kernel in place of everything that was the kernel's.

The pipes sit on file descriptors 1 and 2, so what C code and child programs print is caught too.
Python's own streams write whole lines at once; a line that has no end yet follows with the pulse.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def capture(stdout: int, stderr: int) -> int:
    """Put the pipes `stdout` and `stderr` in place of the kernel's streams.

    Returns
    -------
    int
        A descriptor of the standard output's pipe that stays as it is when user code redirects
        descriptor 1; marks are written to it.
    """
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stderr)
    old = {"stdout": _streams("stdout"), "stderr": _streams("stderr")}
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the rank
    sys.stdout = sys.__stdout__ = _text(1)  # type: ignore[misc] # Final in typeshed only
    sys.stderr = sys.__stderr__ = _text(2)  # type: ignore[misc]
    handlers = list(_logging_handlers())
    for kernel_stream in old["stdout"]:
        _redirect(kernel_stream, sys.stdout, handlers)
    for kernel_stream in old["stderr"]:
        _redirect(kernel_stream, sys.stderr, handlers)
    return stdout


def flush() -> None:
    """Send what Python still holds back."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except Exception:  # closed or replaced by the user: nothing of ours is in it
            pass


def _text(descriptor: int) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def _streams(name: str) -> list[Any]:
    found = [getattr(sys, name), getattr(sys, f"__{name}__")]
    return [stream for stream in found if stream is not None]


def _redirect(old: Any, new: TextIO, handlers: Sequence[logging.StreamHandler[Any]]) -> None:
    """Whoever kept one of the kernel's streams, such as a logging handler, writes to `new`."""
    for handler in handlers:
        if handler.stream is old:
            # Not setStream(): it flushes the old stream, whose sending thread is not in here.
            handler.stream = new
    # Suppressed: a plain file object over descriptor 1 or 2, which is the pipe now.
    with contextlib.suppress(AttributeError):
        old.write, old.flush = new.write, new.flush


def _logging_handlers() -> Iterator[logging.StreamHandler[Any]]:
    # Not by way of the loggers: there are hundreds, and to touch one costs a rank a page.
    for known in tuple(logging._handlerList):  # type: ignore[attr-defined] # its name in every version
        handler = known()
        if isinstance(handler, logging.StreamHandler):
            yield handler
