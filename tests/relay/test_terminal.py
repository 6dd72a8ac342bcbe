"""Questions of ranks in a terminal: answered there, and given up there."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.view.test_everywhere import environment

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

SCRIPT = """
import getpass
from nbstate import Session, notebook_launcher
"""


class Terminal:
    """A script in a terminal, and the person who sits there."""

    def __init__(self, script: str, cwd: Path) -> None:
        (cwd / "script.py").write_text(SCRIPT + script)
        self._person, side = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=cwd,
            env=environment(cwd),
            **dict.fromkeys(("stdin", "stdout", "stderr"), side),  # type: ignore[call-overload]
        )
        os.close(side)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._person)
        self._process.kill()
        self._process.wait()

    def read_until(self, text: str) -> None:
        """Read on until the terminal shows a text."""
        while text not in self.shown:
            self._read()

    def read_to_the_end(self) -> None:
        """Read until the script has ended."""
        with contextlib.suppress(OSError):  # so Linux says that the other side is closed
            while True:
                self._read()

    def _read(self) -> None:
        self.shown += os.read(self._person, 65_536).decode()

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._person, f"{line}\n".encode())

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)


def test_ranks_are_answered_in_the_terminal(tmp_path: Path) -> None:
    script = """
def train():
    return input("name? "), getpass.getpass("key? ")
print(notebook_launcher(train, num_processes=1, isolate=True)[0])
"""
    with Terminal(script, tmp_path) as terminal:
        terminal.read_until("name? ")
        terminal.type("me")
        terminal.read_until("key? ")
        terminal.type("secret")
        terminal.read_to_the_end()
    assert "('me', 'secret')" in terminal.shown
    assert terminal.shown.count("me\r\n") == 1
    assert terminal.shown.count("secret") == 1


@pytest.mark.parametrize("asks", ["input", "getpass.getpass"])
def test_a_question_given_up_takes_no_answer_that_is_anothers(tmp_path: Path, asks: str) -> None:
    script = f"""
session = Session(2)
def ask(prompt):
    return {asks}(prompt)
try:
    session.run(ask, "first? ", ranks=0)
except KeyboardInterrupt:
    print(session.run(ask, "second? ", ranks=1)[0])
session.close()
print(input("third? ").upper())
"""
    with Terminal(script, tmp_path) as terminal:
        terminal.read_until("rank 0 first? ")
        terminal.interrupt()
        terminal.read_until("rank 1 second? ")
        terminal.type("yes")
        terminal.read_until("third? ")
        terminal.type("no")
        terminal.read_to_the_end()
    told = terminal.shown[terminal.shown.index("second? ") :].split()
    assert told[-4:] == ["yes", "third?", "no", "NO"]
