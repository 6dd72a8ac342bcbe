"""Fixtures of the faults: one kernel per module with the usual names, and its end checked.

A row runs over both start methods, unless `forked` says in a word why forking shows it all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels import is_helper

SETUP = """
import functools, os, signal, sys, threading, time
import torch, torch.distributed as dist
import nbstate
from nbstate import PartialState, RankError
notebook_launcher = functools.partial(nbstate.notebook_launcher, start_method={method!r})
launch = functools.partial(nbstate.launch, start_method={method!r})
"""


def setup(method):
    """Return the code of a cell with the usual names, for ranks started by this method."""
    return SETUP.format(method=method)


def shared_memory():
    """Return the names of what stands in /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def forked(why):
    """Mark a row for forked ranks alone: `why` is the part where start methods do not differ."""
    return pytest.mark.parametrize("start_method", ["fork"], ids=[f"fork: {why}"])


@pytest.fixture(params=["fork", "forkserver"])
def start_method(request):
    """Give the way in which the ranks of a test are started."""
    return request.param


@pytest.fixture
def notebook(shared_kernel, start_method, tmp_path):
    """Give the module's kernel with the usual names; no rank may be left in it after a test."""
    shared_kernel.run(f"{setup(start_method)}\nos.chdir({str(tmp_path)!r})")
    if start_method == "forkserver" and not any(map(is_helper, shared_kernel.children())):
        shared_kernel.run("launch(int, num_processes=1, view='silent').wait()")
    yield shared_kernel
    assert shared_kernel.left_running() == []
