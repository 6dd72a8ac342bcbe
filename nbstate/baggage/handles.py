"""What is open in the kernel and cannot be shared with ranks: files, sockets, databases."""

from __future__ import annotations

import io
import os
import socket
import sys
from multiprocessing import connection
from typing import Any


def handle(value: Any) -> str | None:
    """Return words for something open, such as ``SQLite connection``; None for any other value."""
    words = None
    if isinstance(value, io.IOBase):
        words = _file(value)
    elif isinstance(value, socket.socket):
        words = "open socket" if value.fileno() != -1 else None
    elif isinstance(value, connection.Connection):
        words = None if value.closed else "open pipe"
    elif isinstance(value, _known("sqlite3", "Connection")):
        words = "SQLite connection" if _sqlite_is_open(value) else None
    elif isinstance(value, _known("h5py", "File", "Group", "Dataset")):
        words = _hdf5(value)
    return words


def _file(value: Any) -> str | None:
    standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if value.closed or any(value is stream for stream in standard):
        return None
    try:
        value.fileno()
    except (OSError, AttributeError):  # in memory, like StringIO
        return None
    return _named("open file", getattr(value, "name", None))


def _hdf5(value: Any) -> str | None:
    return _named("open HDF5 file", value.file.filename) if value else None


def _named(words: str, path: object) -> str:
    return f"{words} {os.path.basename(path)!r}" if isinstance(path, str) else words  # noqa: PTH119 - of text


def _known(module: str, *names: str) -> tuple[type, ...]:
    """Return classes of a module, none where nobody has imported it."""
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


def _sqlite_is_open(database: Any) -> bool:
    try:
        return bool(database.total_changes >= 0)
    except Exception:  # closed
        return False
