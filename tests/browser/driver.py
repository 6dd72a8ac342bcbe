"""A real JupyterLab in a real browser: notebooks are opened, run, looked at and reopened.

    with Server(folder) as server, Browser(server) as browser:
        server.write("a.ipynb", ["print('hello')"])
        page = browser.open("a.ipynb")
        page.run(0)
        page.wait_until(lambda: "hello" in page.text(0))

Everything listens on the loopback address and is ended by its own handle. Waiting always goes
through the browser's driver, whose events stand still while Python sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from playwright.sync_api import sync_playwright

from tests.kernels import FOREIGN_ENV

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

CHROMIUM = os.environ.get("NBSTATE_CHROMIUM") or shutil.which("chromium") or ""
# Without the internet: what the page needs must come from the machine itself.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
ROOT = Path(__file__).parents[2]


class Server:
    """JupyterLab with private folders: a machine that has never seen any notebook.

    Parameters
    ----------
    folder
        Where the notebooks are.
    settings
        JupyterLab's settings, by plugin.
    disabled
        Names of JupyterLab's extensions that are not loaded.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, dict[str, Any]] | None = None,
        disabled: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._disabled = disabled
        self.token = secrets.token_hex(8)
        self._settings = settings or {}
        self._home = Path(tempfile.mkdtemp(prefix="nbstate-lab-"))

    def __enter__(self) -> Self:
        self._write_settings()
        self._log = (self._home / "server.log").open("w+")
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += ["--ip=127.0.0.1", "--port=0", f"--IdentityProvider.token={self.token}"]
        command += ["--expose-app-in-browser", f"--ServerApp.root_dir={self.folder}"]
        self._process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.url = self._wait_for_address()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self.end_kernels()
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def end_kernels(self) -> None:
        """End every kernel, and the sessions that belong to them."""
        for session in self.ask("GET", "/api/sessions"):
            self.ask("DELETE", f"/api/sessions/{session['id']}")
        for kernel in self.ask("GET", "/api/kernels"):
            self.ask("DELETE", f"/api/kernels/{kernel['id']}")

    @property
    def pid(self) -> int:
        """The process of the server; the kernels are its children."""
        return self._process.pid

    def ask(self, method: str, path: str) -> Any:
        """Call the server's REST interface."""
        request = urllib.request.Request(
            self.url + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def write(self, name: str, cells: Sequence[str]) -> None:
        """Write a notebook with these cells."""
        book = nbformat.v4.new_notebook()
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        book.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        nbformat.write(book, self.folder / name)

    def read(self, name: str) -> Any:
        """Read a notebook from the disk."""
        return nbformat.read(self.folder / name, 4)

    def _environment(self) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not FOREIGN_ENV.match(k)}
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            mine[name] = str(self._home / name.lower())
        mine["JUPYTERLAB_SETTINGS_DIR"] = str(self._home / "settings")
        mine["JUPYTERLAB_WORKSPACES_DIR"] = str(self._home / "workspaces")
        mine["PYTHONPATH"] = str(ROOT)
        return mine

    def _write_settings(self) -> None:
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        for plugin, values in {
            "@jupyterlab/apputils-extension:notification": quiet,
            **self._settings,
        }.items():
            package, name = plugin.split(":")
            file = self._home / "settings" / package / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        config = self._home / "jupyter_config_dir" / "labconfig" / "page_config.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"disabledExtensions": dict.fromkeys(self._disabled, True)}))

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + 90
        runtime = self._home / "jupyter_runtime_dir"
        while time.monotonic() < deadline:
            for found in runtime.glob("jpserver-*.json"):
                with contextlib.suppress(OSError, ValueError):
                    self.url = f"http://127.0.0.1:{json.loads(found.read_text())['port']}"
                    self.ask("GET", "/api/status")
                    return self.url
            assert self._process.poll() is None, (self._home / "server.log").read_text()
            time.sleep(0.05)  # polls another process; nothing in this one can tell
        raise TimeoutError((self._home / "server.log").read_text())


class Browser:
    """Headless Chromium with an empty profile."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.console: list[str] = []

    def __enter__(self) -> Self:
        self._playwright = sync_playwright().start()
        self._profile = tempfile.mkdtemp(prefix="nbstate-chromium-")
        self._context = self._playwright.chromium.launch_persistent_context(
            self._profile,
            executable_path=CHROMIUM,
            headless=True,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", OFFLINE],
            viewport={"width": 1280, "height": 1000},
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.close()
        self._playwright.stop()
        shutil.rmtree(self._profile, ignore_errors=True)

    def blank(self) -> Any:
        """Open an empty page."""
        return self._context.new_page()

    def open(self, name: str, server: Server | None = None) -> Page:
        """Open a notebook in a tab of its own and wait until its kernel is ready."""
        server = server or self.server
        tab = self._context.new_page()
        tab.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: self.console.append(f"error: {error}"))
        tab.goto(f"{server.url}/lab/tree/{name}?token={server.token}&reset")
        page = Page(tab, name)
        page.wait_until(page.is_ready, 90)
        return page


class Page:
    """One notebook in one tab."""

    BOOK = "window.jupyterapp.shell.currentWidget"

    def __init__(self, tab: Any, name: str) -> None:
        self.tab = tab
        self.name = name

    def js(self, expression: str, argument: object = None) -> Any:
        """Evaluate JavaScript in the page."""
        return self.tab.evaluate(expression, argument)

    def is_ready(self) -> bool:
        """Tell whether the notebook is shown and its kernel idle."""
        return bool(
            self.js(
                f"() => {{ const b = window.jupyterapp && {self.BOOK};"
                " return b && b.content && b.content.widgets && b.content.widgets.length > 0"
                " && b.sessionContext?.session?.kernel?.status === 'idle'; }"
            )
        )

    def run(self, cell: int) -> None:
        """Start a cell; does not wait for it."""
        self.js(f"i => {{ {self.BOOK}.content.activeCellIndex = i; }}", cell)
        self.js("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")

    def running(self, cell: int) -> bool:
        """Tell whether a cell has not ended."""
        return "*" in self.js(
            f"i => {self.BOOK}.content.widgets[i].promptNode?.textContent ?? '*'", cell
        )

    def finish(self, cell: int, timeout: float = 60) -> None:
        """Run a cell to its end."""
        before = self.count(cell)
        self.run(cell)
        self.wait_until(lambda: not self.running(cell) and self.count(cell) != before, timeout)

    def count(self, cell: int) -> int | None:
        """Return the number in the brackets before a cell that has ended."""
        number: int | None = self.js(
            f"i => {self.BOOK}.content.widgets[i].model.executionCount", cell
        )
        return number

    def set_source(self, cell: int, text: str) -> None:
        """Replace a cell's code."""
        self.js(
            f"([i, t]) => {{ {self.BOOK}.content.widgets[i].model.sharedModel.setSource(t); }}",
            [cell, text],
        )

    def cell(self, index: int) -> Any:
        """Return the locator of a cell."""
        return self.tab.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Any:
        """Return the locator of a cell's output."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def text(self, index: int) -> str:
        """Return what a cell's output shows, as text."""
        area = f"i => {self.BOOK}.content.widgets[i].outputArea?.node.innerText ?? ''"
        return str(self.js(area, index))

    def outputs(self, index: int) -> Any:
        """Return the outputs of a cell as the notebook would save them."""
        return self.js(f"i => {self.BOOK}.content.widgets[i].model.outputs.toJSON()", index)

    def wait(self, seconds: float) -> None:
        """Let the page go on for a while."""
        self.tab.wait_for_timeout(seconds * 1000)

    def wait_until(self, holds: Callable[[], object], timeout: float = 60) -> None:
        """Wait for something to become true of the page."""
        deadline = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: not so within {timeout:g} s; {self.all_text()}")
            self.wait(0.05)

    def all_text(self) -> str:
        """Return the whole page as text."""
        return str(self.js("() => document.body.innerText"))

    def pane(self, cell: int, label: str) -> str:
        """Return what the pane with this label shows on the board of a cell, '' without one."""
        pane = self.output(cell).get_by_role("log", name=label, exact=True)
        return str(pane.first.inner_text()) if pane.count() else ""

    def button(self, cell: int, name: str) -> Any:
        """Return the locator of a button in a cell's output."""
        return self.output(cell).get_by_role("button", name=name, exact=True).first

    def save(self) -> None:
        """Save the notebook and wait for it."""
        self.js(f"() => {self.BOOK}.context.save()")

    def reload(self) -> None:
        """Load the page again, as a person who comes back does."""
        self.tab.reload()
        self.wait_until(self.is_ready, 90)

    def close(self) -> None:
        """Close the tab."""
        self.tab.close()

    def command(self, name: str) -> None:
        """Start one of JupyterLab's commands."""
        self.js("name => { window.jupyterapp.commands.execute(name); }", name)

    def screenshot(self, name: str, cell: int) -> None:
        """Keep a picture of a cell, where NBSTATE_SCREENSHOTS names a folder for pictures."""
        folder = os.environ.get("NBSTATE_SCREENSHOTS")
        if folder:
            self.cell(cell).screenshot(path=str(Path(folder) / f"{name}.png"))
