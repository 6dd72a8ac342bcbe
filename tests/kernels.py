"""A real notebook kernel for tests: cells go in, what a front end would show comes out.

    with Kernel() as kernel:
        cell = kernel.run("print('hello'); 1 + 1")
        assert (cell.stdout, cell.result) == ("hello\n", "2")

It plays the front end's part over the real protocol, with the synchronous client that
jupyter_client has had since version 7, so that the suite also runs against Colab's older packages.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import psutil
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What the machine or the person running the suite may have set and a fresh notebook has not.
FOREIGN_ENV = re.compile(
    r"NBSTATE_|ACCELERATE_|TORCHELASTIC_|OMP_|MKL_|MPLBACKEND$|FORK_LAUNCHED$|TOKENIZERS_PARALLELISM$"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_(ADDR|PORT)$|PYTEST_"
)

# Helpers of multiprocessing live as long as the process that first needed them, by its design.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def is_helper(process: psutil.Process) -> bool:
    """Tell whether a process is a standard helper, and no rank: one of the fork server's has its
    command line too.
    """
    try:
        parent = process.parent()
        return _looks_like_helper(process) and not (parent and _looks_like_helper(parent))
    except psutil.NoSuchProcess:
        return False


def _looks_like_helper(process: psutil.Process) -> bool:
    command = " ".join(process.cmdline())
    return any(helper in command for helper in _HELPERS)


class KernelDiedError(Exception):
    """The kernel's process ended while a cell was waited for; shows the end of what it wrote."""


@dataclass
class CellError:
    """The exception a cell ended with, as the front end gets it, colours removed."""

    ename: str
    evalue: str
    traceback: str


@dataclass
class Cell:
    """What one executed cell shows; it goes on changing while output arrives.

    Attributes
    ----------
    stdout, stderr
        The text of the two streams.
    displays
        Mime bundles in the order they appeared; an update of a display changes its bundle in place.
    result
        text/plain of the last expression, None without one.
    error
        The exception it ended with.
    status
        None while it runs, then "ok", "error" or "aborted".
    messages
        Everything that came on iopub for this cell.
    """

    msg_id: str
    stdout: str = ""
    stderr: str = ""
    displays: list[dict[str, Any]] = field(default_factory=list)
    result: str | None = None
    error: CellError | None = None
    status: str | None = None
    idle: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    _answers: list[str] = field(default_factory=list)
    _clear_at_next_output: bool = False

    def contents(self, msg_type: str) -> list[dict[str, Any]]:
        """Return the contents of all messages of one type, in order."""
        return [m["content"] for m in self.messages if m["msg_type"] == msg_type]

    def _clear(self) -> None:
        self.stdout = self.stderr = ""
        self.displays.clear()
        self._clear_at_next_output = False


class Kernel:
    """A fresh ipykernel in a process of its own, with private Jupyter and IPython folders.

    Parameters
    ----------
    cwd
        Where the kernel runs; a temporary folder by default.
    env
        Environment variables set for the kernel.
    allow_stdin
        Whether cells may ask for input, as in a live front end; else the kernel counts as headless.
    prefix
        A command that runs the kernel's command, such as one that enters a network namespace; the
        kernel is then spoken to through sockets in the file system.
    """

    def __init__(
        self,
        cwd: Path | None = None,
        *,
        env: dict[str, str] | None = None,
        allow_stdin: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        self._private = tempfile.TemporaryDirectory(prefix="nbstate-kernel-")
        self.cwd = cwd or Path(self._private.name) / "cwd"
        self.env = env or {}
        self.allow_stdin = allow_stdin
        self.prefix = prefix
        self.cells: dict[str, Cell] = {}
        self._bundles: dict[str, list[dict[str, Any]]] = {}  # by display_id

    def __enter__(self) -> Self:
        private = Path(self._private.name)
        self.cwd.mkdir(parents=True, exist_ok=True)
        self._log = (private / "kernel.log").open("w+")
        # Without kernel folders the only spec left is this interpreter's own ipykernel.
        specs = KernelSpecManager(kernel_dirs=[])
        self._manager = KernelManager(
            kernel_spec_manager=specs,
            connection_file=str(private / "connection.json"),
            transport="ipc" if self.prefix else "tcp",
        )
        self._manager.kernel_spec.argv[:0] = self.prefix
        self._manager.start_kernel(
            cwd=str(self.cwd), env=self._environment(private), stdout=self._log, stderr=self._log
        )
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)
        self._dump_stacks_on_demand()
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._log.close()
        self._private.cleanup()

    def _environment(self, private: Path) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not FOREIGN_ENV.match(k)}
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            mine[name] = str(private / name.lower())
        (private / "tmp").mkdir()
        mine["TMPDIR"] = str(private / "tmp")  # logs of ranks go with the kernel
        return mine | self.env

    def _dump_stacks_on_demand(self) -> None:
        """Have SIGUSR2 write every stack into the log and then end the kernel."""
        log = f"__import__('os').open({self._log.name!r}, {os.O_WRONLY | os.O_APPEND})"
        self._client.execute(
            f"__import__('faulthandler').register({int(signal.SIGUSR2)}, {log}, chain=True)",
            silent=True,
        )

    # -- running cells ---------------------------------------------------------------------------

    def run(self, code: str, timeout: float = 120, *, answers: Iterable[str] = ()) -> Cell:
        """Run a cell to its end and return what it shows.

        Parameters
        ----------
        timeout
            Seconds after which the test fails; the kernel's stacks are in the failure.
        answers
            What is typed at the cell's prompts, in order.
        """
        return self.wait(self.start(code, answers=answers), timeout)

    def start(self, code: str, *, answers: Iterable[str] = ()) -> Cell:
        """Send a cell and return at once; `wait` reads its output."""
        msg_id = self._client.execute(code, allow_stdin=self.allow_stdin)
        self.cells[msg_id] = Cell(msg_id, _answers=list(answers))
        return self.cells[msg_id]

    def wait(self, cell: Cell, timeout: float = 120) -> Cell:
        """Read until the cell has ended."""
        deadline = time.monotonic() + timeout
        self.read_until(lambda: cell.idle, timeout)
        reply = self._reply(cell.msg_id, deadline)
        cell.status = reply["status"]
        return cell

    def eval(self, expression: str, timeout: float = 120) -> Any:
        """Return the value of a Python expression in the kernel, carried as JSON."""
        code = f"__import__('json').dumps({expression})"
        msg_id = self._client.execute("", silent=True, user_expressions={"value": code})
        answer = self._reply(msg_id, time.monotonic() + timeout)["user_expressions"]["value"]
        if answer["status"] != "ok":
            raise AssertionError(f"{expression}: {answer['ename']}: {answer['evalue']}")
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def read_until(self, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Take in messages until the condition holds, those of cells that have ended too."""
        deadline = time.monotonic() + timeout
        while not condition():
            self._answer_prompt()
            try:
                message = self._client.get_iopub_msg(timeout=0.1)
            except Empty:
                self._check(deadline)
            else:
                self._take_in(message)

    def _reply(self, msg_id: str, deadline: float) -> dict[str, Any]:
        while True:
            try:
                reply = self._client.get_shell_msg(timeout=0.1)
            except Empty:
                self._check(deadline)
            else:
                if reply["parent_header"].get("msg_id") == msg_id:
                    return reply["content"]

    def _check(self, deadline: float) -> None:
        if not self._manager.is_alive():
            raise KernelDiedError(f"the kernel has died. The end of its log:\n{self._log_tail()}")
        if time.monotonic() > deadline:
            self.signal(signal.SIGUSR2)
            self._manager.provisioner.process.wait()
            raise AssertionError(f"the kernel did not finish in time:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return "\n".join(self.log.splitlines()[-80:])

    def _answer_prompt(self) -> None:
        try:
            request = self._client.get_stdin_msg(timeout=0)
        except Empty:
            return
        cell = self.cells[request["parent_header"]["msg_id"]]
        cell.prompts.append(request["content"]["prompt"])
        if cell._answers:
            self._client.input(cell._answers.pop(0))

    def _take_in(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "update_display_data":
            for bundle in self._bundles.get(content["transient"]["display_id"], []):
                bundle.clear()
                bundle.update(content["data"])
        cell = self.cells.get(message["parent_header"].get("msg_id"))
        if cell is None:
            return
        cell.messages.append(message)
        if kind == "status":
            cell.idle = cell.idle or content["execution_state"] == "idle"
        elif kind == "clear_output":
            if content["wait"]:
                cell._clear_at_next_output = True
            else:
                cell._clear()
        elif kind in ("stream", "display_data", "execute_result", "error"):
            self._show(cell, kind, content)

    def _show(self, cell: Cell, kind: str, content: dict[str, Any]) -> None:
        if cell._clear_at_next_output:
            cell._clear()
        if kind == "stream":
            text = getattr(cell, content["name"]) + content["text"]
            setattr(cell, content["name"], text)
        elif kind == "error":
            traceback = ANSI.sub("", "\n".join(content["traceback"]))
            cell.error = CellError(content["ename"], ANSI.sub("", content["evalue"]), traceback)
        else:
            bundle = dict(content["data"])
            display_id = content.get("transient", {}).get("display_id")
            if display_id is not None:
                self._bundles.setdefault(display_id, []).append(bundle)
            if kind == "execute_result":
                cell.result = bundle.get("text/plain")
            cell.displays.append(bundle)

    # -- the process -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._manager.provisioner.pid

    @property
    def log(self) -> str:
        """What the kernel's process itself wrote to its descriptors 1 and 2, outside any cell."""
        return Path(self._log.name).read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """Return every living descendant of the kernel."""
        return psutil.Process(self.pid).children(recursive=True)

    def left_running(self) -> list[psutil.Process]:
        """Return what it has started and what still runs, without multiprocessing's helpers."""
        return [process for process in self.children() if not is_helper(process)]

    def interrupt(self) -> None:
        """Press the stop button: SIGINT to the kernel's whole process group."""
        self._manager.interrupt_kernel()

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the kernel's process, or to its whole process group."""
        os.kill(-os.getpgid(self.pid) if group else self.pid, number)

    def kill(self) -> None:
        """End the kernel with SIGKILL and wait until it is gone; its children are not touched."""
        self.signal(signal.SIGKILL)
        self._manager.provisioner.process.wait()

    def restart(self) -> None:
        """Restart as the front end's button does; its variables are gone."""
        self._manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=120)
        self._dump_stacks_on_demand()
