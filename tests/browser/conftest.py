"""One JupyterLab and one Chromium for all tests here; skipped where Chromium is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.browser.driver import CHROMIUM, Browser, Page, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, and skip it without a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if not CHROMIUM:
                item.add_marker(pytest.mark.skip(reason="Chromium is not installed"))


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("notebooks")) as server:
        yield server


@pytest.fixture(scope="package")
def browser(server: Server) -> Iterator[Browser]:
    with Browser(server) as browser:
        yield browser


@pytest.fixture(autouse=True)
def no_process_left(server: Server) -> Iterator[None]:
    """Fail a test that leaves a kernel or a rank; the browser's own processes come and go."""
    yield
    server.end_kernels()
    left = psutil.Process(server.pid).children(recursive=True)
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive


@pytest.fixture
def notebook(
    server: Server, browser: Browser, request: pytest.FixtureRequest
) -> Iterator[Callable[[Sequence[str]], Page]]:
    """Make and open a notebook with some cells, the first of which is run."""
    pages: list[Page] = []

    def make(cells: Sequence[str]) -> Page:
        name = f"{request.node.name.split('[')[0]}-{len(pages)}.ipynb"
        server.write(name, cells)
        page = browser.open(name)
        pages.append(page)
        page.finish(0)
        return page

    yield make
    for page in pages:
        page.close()
