"""Fixtures for every test: real kernels, and the proof that nothing is left running."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kernels import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36

# Helpers of multiprocessing live as long as the process that first needed them, by its design.
STANDARD_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def pytest_configure() -> None:
    """Have orphans of a killed kernel handed to this process, where they can be seen."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return ""


def _is_helper(process: psutil.Process) -> bool:
    return any(helper in _describe(process) for helper in STANDARD_HELPERS)


def _of_a_test(process: psutil.Process) -> bool:
    """Tell a rank, which the fork server has made and which looks like it, from the server."""
    try:
        parent = process.parent()
    except psutil.NoSuchProcess:
        return False
    return not _is_helper(process) or (parent is not None and _is_helper(parent))


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail a test after which a process is alive (or a zombie) that was not there before it."""
    before = _descendants()
    yield
    made = [process for process in _descendants() - before if _of_a_test(process)]
    _, alive = psutil.wait_procs(made, timeout=10)
    left = [line for p in alive if (line := _describe(p))]
    assert not left, "left running: " + "; ".join(left)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """Give a fresh kernel, for tests that change or end it."""
    with Kernel(tmp_path) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Give one kernel to all tests of a module: starting one costs a second."""
    with Kernel(tmp_path_factory.mktemp("kernel")) as shared:
        yield shared
