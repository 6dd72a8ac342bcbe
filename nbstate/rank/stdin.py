"""Questions of a rank: `input`, `getpass` and the debugger ask in the notebook."""

from __future__ import annotations

import builtins
import getpass
import itertools
import linecache
import os
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from nbstate.rank import capture, failure
from nbstate.wire import Answer, Question

if TYPE_CHECKING:
    from types import FrameType

    from nbstate.rank.channel import Channel


def install(channel: Channel) -> None:
    """Have every question of this rank asked by the kernel."""
    asker = Asker(channel)
    channel.handlers[Answer] = asker.answered
    builtins.input = asker.input
    getpass.getpass = asker.getpass
    # ipykernel's hook is that of an editor's debugger, which does nothing without the editor.
    sys.breakpointhook = sys.__breakpointhook__


class Asker:
    """Sends questions and waits for their answers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[Answer]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def input(self, prompt: object = "", /) -> str:
        """Stand in for the builtin."""
        return self._ask(str(prompt), password=False)

    def getpass(self, prompt: str = "Password: ", stream: object = None, **_: Any) -> str:
        """Stand in for `getpass.getpass`."""
        return self._ask(prompt, password=True)

    def answered(self, answer: Answer) -> None:
        """Take an answer; called in the channel's thread."""
        waiting = self._answers.get(answer.number)
        if waiting is not None:
            waiting.put(answer)

    def _ask(self, prompt: str, *, password: bool) -> str:
        if os.getpid() != self._pid:
            _refuse(prompt, "a process that a rank has started cannot ask")
        capture.flush()
        with self._lock:
            number = next(self._numbers)
            answers = self._answers[number] = queue.SimpleQueue()
        try:
            self._channel.send(Question(number, prompt, password))
            answer = answers.get()
        finally:
            del self._answers[number]
        if answer.kind == "eof":
            _refuse(prompt, answer.text)
        if answer.kind == "interrupt":
            raise KeyboardInterrupt(answer.text)
        return answer.text


def _refuse(prompt: str, reason: str) -> NoReturn:
    where = _users_line(sys._getframe(1))
    raise EOFError(f"input({prompt!r}) in {where}: {reason}")


def _users_line(frame: FrameType | None) -> str:
    while frame is not None and failure.is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    code = frame.f_code
    source = linecache.getline(code.co_filename, frame.f_lineno).strip()
    place = f"{failure.cell_name(code.co_filename)}, line {frame.f_lineno}, in {code.co_name}"
    return f"{place}: {source}" if source else place
