"""Folders for the whole output of each rank: private, and no more of them than are of use.

Those that the user has not chosen go with the kernel. Of one that is killed they stay.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections import deque
from pathlib import Path

KEPT_RUNS = 10
"""How many runs' folders are kept in the temporary directory, counted per kernel."""

_made: deque[Path] = deque()


def new_folder(chosen: str | os.PathLike[str] | None) -> Path:
    """Return a folder that only this user can read.

    Parameters
    ----------
    chosen
        The user's own choice, which is never removed; None: a new temporary folder, in place of
        the one of the eleventh run before this.

    Raises
    ------
    ValueError
        The chosen one cannot be made, or not be written to.
    OSError
        A temporary one cannot be made.
    """
    if chosen is not None:
        return _usable(Path(chosen))
    _remove_at_exit()
    folder = Path(tempfile.mkdtemp(prefix="nbstate-"))
    _made.append(folder)
    _keep(KEPT_RUNS)
    return folder


def _keep(number: int) -> None:
    while len(_made) > number:
        shutil.rmtree(_made.popleft(), ignore_errors=True)


@functools.cache
def _remove_at_exit() -> None:
    """Have an exit remove all, once it has ended the ranks: asked for later, that is done first."""
    kernel = os.getpid()
    atexit.register(lambda: _keep(0) if os.getpid() == kernel else None)  # no child's to remove


def _usable(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"log_dir={str(folder)!r}: {error.strerror}; give a folder that can be written to, "
            "or leave log_dir out"
        ) from None
    return folder
