"""Folders for the whole output of each rank: private, and no more of them than are of use.

Those that the user has not chosen go with the kernel. Of one that is killed they stay.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

KEPT_RUNS = 10
"""How many runs' folders are kept in the temporary directory once they are over, per kernel."""

_made: dict[Path, bool] = {}
"""The temporary folders, oldest first, and whether the run of each is over."""


def new_folder(chosen: str | os.PathLike[str] | None) -> Path:
    """Return a folder that only this user can read.

    Parameters
    ----------
    chosen
        The user's own choice, which is never removed; None: a new temporary folder, which
        `remove_old` removes once its run is over and ten others were over later.

    Raises
    ------
    ValueError
        The chosen one cannot be made, or not be written to.
    OSError
        A temporary one cannot be made.
    """
    if chosen is not None:
        return _usable(Path(chosen).absolute())  # the kernel may go elsewhere
    _remove_at_exit()
    folder = Path(tempfile.mkdtemp(prefix="nbstate-"))
    _made[folder] = False
    return folder


def over(folder: Path) -> None:
    """The run that wrote into `folder` is over."""
    if _made.pop(folder, None) is not None:
        _made[folder] = True


def remove_old() -> None:
    """Remove the temporary folders of runs that were over long ago."""
    _remove([folder for folder, done in _made.copy().items() if done][:-KEPT_RUNS])


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        _made.pop(folder, None)


@functools.cache
def _remove_at_exit() -> None:
    """Have an exit remove all, once it has ended the ranks: asked for later, that is done first."""
    kernel = os.getpid()
    atexit.register(lambda: _remove([*_made]) if os.getpid() == kernel else None)  # no child's


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
