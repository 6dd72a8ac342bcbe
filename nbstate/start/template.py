"""Imported once, by the template process from which fresh ranks are made: what every rank needs.

Nothing here may wake a device. Frozen, the imported objects are never touched by a rank's garbage
collector, so that their memory stays shared.
"""

from __future__ import annotations

import gc
import os

import ipykernel.zmqshell
import numpy.random
import torch.distributed

import nbstate.rank.bootstrap
import nbstate.rank.call
import nbstate.state

__all__ = ["ipykernel", "nbstate", "numpy", "torch"]

# What interrupts the kernel with all that is in its process group is not meant for fresh ranks.
os.setpgid(0, 0)
gc.collect()
gc.freeze()
