"""The training facade: an Accelerator that moves the states while a loop trains."""

from nbstate.train.accelerator import Accelerator
from nbstate.train.control import find_executable_batch_size, set_seed
from nbstate.train.data import skip_first_batches
from nbstate.train.project import ProjectConfiguration
from nbstate.train.trackers import Tracker

__all__ = [
    "Accelerator",
    "ProjectConfiguration",
    "Tracker",
    "find_executable_batch_size",
    "set_seed",
    "skip_first_batches",
]
