"""Kernels for tests of what ranks call together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernels import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def notebook(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    """Give one kernel to a whole file, in which that file's SETUP has run."""
    with Kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        cell = kernel.run(request.module.SETUP)
        assert cell.error is None, cell.error
        yield kernel


def lines(notebook: Kernel, code: str) -> list[str]:
    """Run a cell and return what it printed."""
    cell = notebook.run(code)
    assert cell.error is None, cell.error
    return cell.stdout.splitlines()
