"""Two and three notebooks, each on a host of its own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.elastic.hosts import Network, missing
from tests.kernels import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.elastic.hosts import Host
    from tests.kernels import Cell

SETUP = """
import os, signal, sys, time
import torch, torch.distributed as dist
from nbstate import PartialState, RankError, launch, notebook_launcher
"""


class Notebook:
    """A notebook on a host."""

    def __init__(self, kernel: Kernel, host: Host) -> None:
        self.kernel = kernel
        self.host = host

    def start(self, code: str) -> Cell:
        """Send a cell and return at once."""
        return self.kernel.start(code)

    def end(self, cell: Cell) -> Cell:
        """Wait until a cell has ended, and see that it left no process."""
        self.kernel.wait(cell)
        assert self.kernel.children() == []
        return cell

    def run(self, code: str) -> Cell:
        """Run a cell to its end."""
        return self.end(self.start(code))

    def wait_for(self, path: Path) -> None:
        """Return once a rank has made this file, which says how far it is."""
        self.kernel.read_until(path.exists)


def run(notebooks: list[Notebook], code: str) -> list[Cell]:
    """Run the same cell everywhere at once; ``PLACE`` in it is each notebook's own."""
    return end(notebooks, start(notebooks, code))


def start(notebooks: list[Notebook], code: str) -> list[Cell]:
    """Send the same cell everywhere."""
    place = "num_nodes={}, node_rank={}, master_addr='10.77.0.1', use_port=29500"
    return [
        notebook.start(code.replace("PLACE", place.format(len(notebooks), number)))
        for number, notebook in enumerate(notebooks)
    ]


def end(notebooks: list[Notebook], cells: list[Cell]) -> list[Cell]:
    """Wait until all have ended."""
    return [notebook.end(cell) for notebook, cell in zip(notebooks, cells, strict=True)]


@pytest.fixture(scope="session")
def hosts() -> Iterator[list[Host]]:
    """Give three hosts on one network."""
    why = missing()
    if why:
        pytest.skip(why)
    with Network() as made:
        yield made


@contextlib.contextmanager
def _notebook(host: Host, folder: Path) -> Iterator[Notebook]:
    with Kernel(folder, prefix=host.command) as kernel:
        kernel.run(SETUP)
        yield Notebook(kernel, host)


@pytest.fixture(scope="module")
def both(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Notebook]]:
    """Give two notebooks on two hosts to all tests of a module."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(_notebook(host, tmp_path_factory.mktemp("host")))
            for host in hosts[:2]
        ]


@pytest.fixture(scope="module")
def third(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """Give one more notebook, on a third host."""
    with _notebook(hosts[2], tmp_path_factory.mktemp("host")) as notebook:
        yield notebook


@pytest.fixture
def doomed(
    hosts: list[Host], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Notebook]]:
    """Make notebooks on hosts by number, for one test that ends them."""
    with contextlib.ExitStack() as stack:
        yield lambda number: stack.enter_context(
            _notebook(hosts[number], tmp_path_factory.mktemp("host"))
        )
