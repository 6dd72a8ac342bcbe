"""Fixtures of the faults: one kernel per module with the usual names, and its end checked."""

from __future__ import annotations

import pytest

SETUP = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
from nbstate import PartialState, RankError, launch, notebook_launcher
"""


@pytest.fixture
def notebook(shared_kernel):
    """Give the module's kernel with the usual names; no rank may be left in it after a test."""
    shared_kernel.run(SETUP)
    yield shared_kernel
    assert shared_kernel.children() == []
