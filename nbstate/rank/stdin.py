"""Questions of a rank: `input`, `getpass` and the debugger ask in the notebook."""

from __future__ import annotations

import bdb
import builtins
import getpass
import itertools
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from nbstate.rank import capture, failure
from nbstate.wire import Answer, Question, Unasked

if TYPE_CHECKING:
    from types import FrameType

    from nbstate.rank.channel import Channel


def install(channel: Channel, kernel: Any, *, debugs: bool) -> None:
    """Have every question of this rank asked where the job was launched.

    Parameters
    ----------
    kernel
        The copy of the kernel in a forked rank of a notebook.
    debugs
        Somebody may be there to use a debugger.
    """
    asker = Asker(channel)
    channel.handlers[Answer] = asker.answered
    builtins.input = asker.input
    getpass.getpass = asker.getpass
    # ipykernel's hook is that of an editor's debugger, which does nothing without the editor.
    sys.breakpointhook = sys.__breakpointhook__ if debugs else _no_debugger
    pdb: Any = sys.modules.get("pdb")
    if pdb is not None and not debugs:
        pdb.set_trace = _no_debugger
    if kernel is not None:
        kernel._allow_stdin = True  # who kept a reference to `input` has the kernel's own method
        kernel._input_request = asker.request


class Asker:
    """Sends questions and waits for their answers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[Answer]] = {}
        self._lock = threading.Lock()

    def input(self, prompt: object = "", /) -> str:
        """Stand in for the builtin."""
        return self._ask(str(prompt), password=False)

    def getpass(self, prompt: str = "Password: ", stream: object = None, **_: Any) -> str:
        """Stand in for `getpass.getpass`."""
        return self._ask(prompt, password=True)

    def request(
        self,
        prompt: str,
        _ident: object,
        _parent: object,
        password: bool = False,
    ) -> str:
        """Stand in for the method by which ipykernel's kernel asks."""
        return self._ask(prompt, password=password)

    def answered(self, answer: Answer) -> None:
        """Take an answer; called in the channel's thread."""
        waiting = self._answers.get(answer.number)
        if waiting is not None:
            waiting.put(answer)

    def _ask(self, prompt: str, *, password: bool) -> str:
        asks = f"{'getpass' if password else 'input'}({prompt!r})"
        if self._channel.inherited:
            _refuse(asks, "a process that a rank has started cannot ask")
        capture.flush()
        with self._lock:
            number = next(self._numbers)
        try:
            answer = self._answer_to(Question(number, prompt, password))
        except KeyboardInterrupt:
            # A debugger takes an interrupt at its prompt for "go on", and the rank would not stop.
            if _in_debugger(sys._getframe(1)):
                raise bdb.BdbQuit from None
            raise
        if answer.kind == "eof":
            _refuse(asks, answer.text)
        if answer.kind == "interrupt":
            raise KeyboardInterrupt(answer.text)
        return answer.text

    def _answer_to(self, question: Question) -> Answer:
        answers = self._answers[question.number] = queue.SimpleQueue()
        try:
            self._channel.send(question)
            return answers.get()
        except BaseException:  # an interrupt, or what a signal handler of the user's raises
            self._channel.send(Unasked(question.number))
            raise
        finally:
            del self._answers[question.number]


def _no_debugger(*_: Any, **__: Any) -> NoReturn:
    # Not left to the debugger: at the end of its input it quits, and says nothing of why.
    where = failure.where_of(sys._getframe(1))
    raise EOFError(f"{where}: nobody is here to use the debugger; take this line out")


def _refuse(asks: str, reason: str) -> NoReturn:
    frame = sys._getframe(1)
    where = failure.where_of(frame)
    if _in_debugger(frame):  # it takes an EOFError for "quit", and says nothing of why
        why, *_ = reason.split(";")
        raise bdb.BdbQuit(f"{where}: the debugger was left: {why}")
    raise EOFError(f"{asks} in {where}: {reason}")


def _in_debugger(frame: FrameType | None) -> bool:
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), bdb.Bdb):
            return True
        frame = frame.f_back
    return False
