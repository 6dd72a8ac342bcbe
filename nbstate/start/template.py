"""Imported once, by the template process from which fresh ranks are made: what every rank needs.

Nothing here may wake a device. Frozen, the imported objects are never touched by a rank's garbage
collector, so that their memory stays shared.
"""

from __future__ import annotations

import gc

import ipykernel.zmqshell
import numpy.random
import torch.distributed

import nbstate.rank.bootstrap
import nbstate.rank.call
import nbstate.state

__all__ = ["ipykernel", "nbstate", "numpy", "torch"]

gc.collect()
gc.freeze()
