"""A kernel with a session of two ranks, for tests that leave it as it was."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.kernels import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
%load_ext nbstate
import os, signal, threading, time
import nbstate, torch
import torch.distributed as dist
from nbstate import PartialState, RankError, Session
known_at_fork = 5
session = Session(2)
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        cell = kernel.run(SETUP)
        assert cell.error is None, cell.error
        yield kernel
        kernel.run("session.close()")


def complete(kernel: Kernel, code: str) -> list[str]:
    """Return what the notebook offers at the end of `code`."""
    asked = kernel._client.complete(code)
    matches: list[str] = kernel._reply(asked, time.monotonic() + 30)["matches"]
    return matches
