"""nbstate: run a function on several GPUs or CPU processes from a living notebook.

Each public name is loaded at its first use, so that `import nbstate` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives.
_HOMES = {
    "Accelerator": "nbstate.train",
    "AcceleratorState": "nbstate.state",
    "AutocastKwargs": "nbstate.plugins",
    "DataLoaderConfiguration": "nbstate.plugins",
    "DeepSpeedPlugin": "nbstate.plugins",
    "DistributedDataParallelKwargs": "nbstate.plugins",
    "DistributedOperationException": "nbstate.operations",
    "DistributedType": "nbstate.state",
    "FullyShardedDataParallelPlugin": "nbstate.plugins",
    "GradScalerKwargs": "nbstate.plugins",
    "GradientAccumulationPlugin": "nbstate.plugins",
    "GradientState": "nbstate.state",
    "InitProcessGroupKwargs": "nbstate.plugins",
    "Job": "nbstate.job",
    "JobStoppedError": "nbstate.errors",
    "LaunchOptions": "nbstate.options",
    "MegatronLMPlugin": "nbstate.plugins",
    "ParallelismConfig": "nbstate.plugins",
    "PartialState": "nbstate.state",
    "ProjectConfiguration": "nbstate.train",
    "RankError": "nbstate.errors",
    "RankFailure": "nbstate.errors",
    "RankResults": "nbstate.results",
    "RankTimeoutError": "nbstate.errors",
    "Session": "nbstate.session",
    "TorchDynamoPlugin": "nbstate.plugins",
    "TorchTensorParallelPlugin": "nbstate.plugins",
    "Tracker": "nbstate.train",
    "assert_same": "nbstate.compare",
    "broadcast": "nbstate.operations",
    "broadcast_object_list": "nbstate.operations",
    "captured": "nbstate.baggage",
    "debug_launcher": "nbstate.launcher",
    "doctor": "nbstate.checkup",
    "find_executable_batch_size": "nbstate.train",
    "draw": "nbstate.draw",
    "gather": "nbstate.operations",
    "gather_in_order": "nbstate.operations",
    "gather_object": "nbstate.operations",
    "get_logger": "nbstate.state",
    "inspect": "nbstate.view.inspector",
    "is_main_process": "nbstate.state",
    "jobs": "nbstate.job",
    "last_run": "nbstate.view",
    "launch": "nbstate.launcher",
    "log": "nbstate.metrics",
    "notebook_launcher": "nbstate.launcher",
    "pad_across_processes": "nbstate.operations",
    "reduce": "nbstate.operations",
    "send_to_device": "nbstate.operations",
    "trace": "nbstate.rank.timing",
    "set_seed": "nbstate.train",
    "skip_first_batches": "nbstate.train",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - one list of names, not two

if TYPE_CHECKING:
    from nbstate import draw as draw
    from nbstate.baggage import captured as captured
    from nbstate.checkup import doctor as doctor
    from nbstate.compare import assert_same as assert_same
    from nbstate.errors import JobStoppedError as JobStoppedError
    from nbstate.errors import RankError as RankError
    from nbstate.errors import RankFailure as RankFailure
    from nbstate.errors import RankTimeoutError as RankTimeoutError
    from nbstate.job import Job as Job
    from nbstate.job import jobs as jobs
    from nbstate.launcher import debug_launcher as debug_launcher
    from nbstate.launcher import launch as launch
    from nbstate.launcher import notebook_launcher as notebook_launcher
    from nbstate.metrics import log as log
    from nbstate.operations import DistributedOperationException as DistributedOperationException
    from nbstate.operations import broadcast as broadcast
    from nbstate.operations import broadcast_object_list as broadcast_object_list
    from nbstate.operations import gather as gather
    from nbstate.operations import gather_in_order as gather_in_order
    from nbstate.operations import gather_object as gather_object
    from nbstate.operations import pad_across_processes as pad_across_processes
    from nbstate.operations import reduce as reduce
    from nbstate.operations import send_to_device as send_to_device
    from nbstate.options import LaunchOptions as LaunchOptions
    from nbstate.plugins import AutocastKwargs as AutocastKwargs
    from nbstate.plugins import DataLoaderConfiguration as DataLoaderConfiguration
    from nbstate.plugins import DeepSpeedPlugin as DeepSpeedPlugin
    from nbstate.plugins import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from nbstate.plugins import FullyShardedDataParallelPlugin as FullyShardedDataParallelPlugin
    from nbstate.plugins import GradientAccumulationPlugin as GradientAccumulationPlugin
    from nbstate.plugins import GradScalerKwargs as GradScalerKwargs
    from nbstate.plugins import InitProcessGroupKwargs as InitProcessGroupKwargs
    from nbstate.plugins import MegatronLMPlugin as MegatronLMPlugin
    from nbstate.plugins import ParallelismConfig as ParallelismConfig
    from nbstate.plugins import TorchDynamoPlugin as TorchDynamoPlugin
    from nbstate.plugins import TorchTensorParallelPlugin as TorchTensorParallelPlugin
    from nbstate.rank.timing import trace as trace
    from nbstate.results import RankResults as RankResults
    from nbstate.session import Session as Session
    from nbstate.state import AcceleratorState as AcceleratorState
    from nbstate.state import DistributedType as DistributedType
    from nbstate.state import GradientState as GradientState
    from nbstate.state import PartialState as PartialState
    from nbstate.state import get_logger as get_logger
    from nbstate.state import is_main_process as is_main_process
    from nbstate.train import Accelerator as Accelerator
    from nbstate.train import ProjectConfiguration as ProjectConfiguration
    from nbstate.train import Tracker as Tracker
    from nbstate.train import find_executable_batch_size as find_executable_batch_size
    from nbstate.train import set_seed as set_seed
    from nbstate.train import skip_first_batches as skip_first_batches
    from nbstate.view import last_run as last_run
    from nbstate.view.inspector import inspect as inspect


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'nbstate' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"nbstate.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Register the magics for ranks that stay: ``%load_ext nbstate``."""
    from nbstate.session import magics

    magics.register(shell)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]


# From here on it is noticed which cell wakes an accelerator, which a fork could not survive.
importlib.import_module("nbstate.woken").watch.begin()
