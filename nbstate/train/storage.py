"""Directories that are there as a whole or not at all.

    .NAME.partial    being written; left over after a kill, and written anew the next time
    NAME             complete
    .NAME.old        the one before, while NAME is exchanged; put back where that was cut short

A rename is the only step that readers see, so a kill at any moment leaves a complete directory.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Tells a directory that may be replaced from one that only happens to have the name.
MANIFEST = "checkpoint.json"


def begin(final: Path) -> Path:
    """An empty directory to write to, next to where it will be.

    Raises
    ------
    FileExistsError
        There is something at the final place that is no checkpoint.
    """
    recover(final)
    if final.exists() and not (final / MANIFEST).exists() and any(final.iterdir()):
        raise FileExistsError(
            f"{final} holds other files than a checkpoint's, which saving would delete; "
            f"choose a directory of its own"
        )
    partial = partial_of(final)
    remove(partial)
    partial.mkdir(parents=True)
    return partial


def commit(final: Path) -> None:
    """Put the written directory in its place."""
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    partial_of(final).rename(final)
    shutil.rmtree(old, ignore_errors=True)


def recover(final: Path) -> None:
    """Put the one before back, if a kill came while it was exchanged."""
    old = final.with_name(f".{final.name}.old")
    if old.exists() and not final.exists():
        old.rename(final)


def remove(directory: Path) -> None:
    """Delete a directory; it loses its name first, so that no half of it is taken for a whole."""
    if directory.exists():
        gone = directory.with_name(f".{directory.name.lstrip('.')}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        directory.rename(gone)
        shutil.rmtree(gone)


def partial_of(final: Path) -> Path:
    """Where a directory is while it is written."""
    return final.with_name(f".{final.name}.partial")


def numbered(parent: Path, prefix: str) -> list[Path]:
    """The directories ``prefix0``, ``prefix1``, ..., oldest first."""
    if not parent.is_dir():
        return []
    found = [each for each in parent.iterdir() if re.fullmatch(rf"{prefix}\d+", each.name)]
    return sorted(found, key=lambda each: int(each.name.removeprefix(prefix)))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write one file to, that takes the place of `path` when the block ends well."""
    partial = path.with_name(f".{path.name}.partial")
    yield partial
    os.replace(partial, path)  # noqa: PTH105, it says that the old one goes
