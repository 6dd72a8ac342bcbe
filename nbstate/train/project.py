"""Where a run keeps its logs and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbstate.plugins import Plugin

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class ProjectConfiguration(Plugin):
    """Where logs and checkpoints go, and how many checkpoints are kept.

    Parameters
    ----------
    project_dir : str or Path, optional
        The directory of the project; automatically named checkpoints are in its ``checkpoints``.
    logging_dir : str or Path, optional
        Where trackers write; None takes `project_dir`.
    automatic_checkpoint_naming : bool
        ``save_state()`` writes ``checkpoints/checkpoint_0``, ``checkpoint_1`` and so on.
    total_limit : int, optional
        How many of those are kept; the oldest go first. None keeps all.

    Examples
    --------
    >>> ProjectConfiguration("runs/a", automatic_checkpoint_naming=True, total_limit=2).to_kwargs()
    {'project_dir': 'runs/a', 'automatic_checkpoint_naming': True, 'total_limit': 2}
    """

    project_dir: str | Path | None = None
    logging_dir: str | Path | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None

    def __post_init__(self) -> None:
        if self.total_limit is not None:
            self._check_count("total_limit")
