"""Fixtures for every test: real kernels, and the proof that nothing is left running."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kernels import Kernel, is_helper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


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


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail a test after which a process is alive (or a zombie) that was not there before it."""
    before = _descendants()
    yield
    made = [process for process in _descendants() - before if not is_helper(process)]
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
