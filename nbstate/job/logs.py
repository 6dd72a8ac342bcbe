"""Folders for the whole output of each rank: private, and no more of them than are of use."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

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
    folder = Path(tempfile.mkdtemp(prefix="nbstate-"))
    _made.append(folder)
    while len(_made) > KEPT_RUNS:
        shutil.rmtree(_made.popleft(), ignore_errors=True)
    return folder


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
