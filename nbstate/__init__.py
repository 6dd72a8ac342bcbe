"""nbstate: run a function on several GPUs or CPU processes from a living notebook.

Each public name is loaded at its first use, so that `import nbstate` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives.
_HOMES = {
    "Job": "nbstate.job",
    "JobStoppedError": "nbstate.errors",
    "LaunchOptions": "nbstate.options",
    "PartialState": "nbstate.state",
    "RankError": "nbstate.errors",
    "RankFailure": "nbstate.errors",
    "RankResults": "nbstate.results",
    "RankTimeoutError": "nbstate.errors",
    "debug_launcher": "nbstate.launcher",
    "jobs": "nbstate.job",
    "launch": "nbstate.launcher",
    "notebook_launcher": "nbstate.launcher",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - one list of names, not two

if TYPE_CHECKING:
    from nbstate.errors import JobStoppedError as JobStoppedError
    from nbstate.errors import RankError as RankError
    from nbstate.errors import RankFailure as RankFailure
    from nbstate.errors import RankTimeoutError as RankTimeoutError
    from nbstate.job import Job as Job
    from nbstate.job import jobs as jobs
    from nbstate.launcher import debug_launcher as debug_launcher
    from nbstate.launcher import launch as launch
    from nbstate.launcher import notebook_launcher as notebook_launcher
    from nbstate.options import LaunchOptions as LaunchOptions
    from nbstate.results import RankResults as RankResults
    from nbstate.state import PartialState as PartialState


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'nbstate' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
