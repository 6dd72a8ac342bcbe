"""Every test of states begins and ends without one, as a process that nobody launched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nbstate.state import reset_all

if TYPE_CHECKING:
    from collections.abc import Iterator

OF_LAUNCHES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "OMPI_", "PMI_", "MV2_", "MPI_",
               "ACCELERATE_", "NBSTATE_", "FORK_LAUNCHED")  # fmt: skip


@pytest.fixture(autouse=True)
def no_states(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take launchers' variables out of the environment, and leave no state behind."""
    for name in os.environ:
        if name.startswith(OF_LAUNCHES):
            monkeypatch.delenv(name)
    reset_all("a test began")
    yield
    reset_all("a test was over")
