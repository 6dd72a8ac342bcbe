"""How a view's thread reaches the cell that its job belongs to.

A thread that prints in a kernel writes into whatever cell runs at that moment. So the place is
fixed once, in the cell itself, and every later message carries that cell's request as its parent.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import select
import sys
import termios
import threading
import uuid
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from nbstate.environment import answers_questions, running_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = "nobody is here to answer; pass the value as an argument of the function"
ENDED = "the input was ended"

Bundle = dict[str, Any]


class Place(Protocol):
    """Where a view shows itself."""

    draws: bool
    """It can show a mime bundle."""
    watched: bool
    """Somebody may be looking while the job runs."""
    bounded: bool
    """What is written here is kept for ever, so it must stay short."""

    def write(self, stream: str, text: str) -> None:
        """Show text as 'stdout' or 'stderr'."""

    def flush(self) -> None:
        """Return once everything is on its way to the user."""

    def show(
        self,
        bundle: Bundle,
        display_id: str | None = None,
        *,
        update: bool = False,
        metadata: Bundle | None = None,
    ) -> None:
        """Show a mime bundle, or put it in the place of the one with this id."""

    def ask(
        self, prompt: str, *, password: bool, still: Callable[[], bool], glance: int
    ) -> str | None:
        """Return the line that a person types, or None once the question is moot.

        Parameters
        ----------
        still
            Tells whether the answer still matters.
        glance
            Milliseconds between two such looks.

        Raises
        ------
        EOFError
            The person ended the input, or there is none.
        """


class Stream:
    """The streams of a terminal, a script, or of whoever captures this cell's output."""

    draws = False
    watched = True
    bounded = False

    def __init__(self) -> None:
        self._streams: dict[str, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}

    def write(self, stream: str, text: str) -> None:
        """Write to the stream that was current when the job began."""
        self._streams[stream].write(text)
        self._streams[stream].flush()

    def flush(self) -> None:
        """Nothing waits here: `write` has flushed."""

    def show(
        self,
        bundle: Bundle,
        display_id: str | None = None,
        *,
        update: bool = False,
        metadata: Bundle | None = None,
    ) -> None:
        """Write the bundle's plain text."""
        self.write("stdout", bundle.get("text/plain", "") + "\n")

    def ask(
        self, prompt: str, *, password: bool, still: Callable[[], bool], glance: int
    ) -> str | None:
        """Ask in the terminal."""
        keyboard = sys.stdin
        if keyboard is None or not keyboard.isatty():
            raise EOFError(NOBODY)
        if not still():
            return None
        # Not input() nor getpass(): they cannot be given up, and would take what is typed next.
        with _unseen(keyboard) if password else contextlib.nullcontext():
            self.write("stdout", prompt)
            while still():
                if select.select([keyboard], [], [], glance / 1000)[0]:
                    return _line_of(keyboard)
        self.write("stdout", "\n")
        return None


class Cell:
    """One cell of a notebook, wherever the kernel's main thread is by now."""

    draws = True
    bounded = True

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._own: Bundle = kernel.get_parent("shell")
        self._asker = kernel._parent_ident["shell"]
        self.watched = answers_questions(kernel)

    def is_same_cell(self, other: Cell) -> bool:
        """Tell whether the notebook says that both are one cell, run twice."""
        mine, theirs = (place._own.get("metadata", {}).get("cellId") for place in (self, other))
        return mine is not None and mine == theirs

    @property
    def _parent(self) -> Bundle:
        """The request that messages belong to."""
        if self.watched:
            return self._own
        # Who runs a notebook without a person hears only the cell that runs: what a background job
        # says stands where it is waited for. (In an empty context: this thread's has its own cell.)
        current: Bundle = contextvars.Context().run(self._kernel.get_parent, "shell")
        return current

    def write(self, stream: str, text: str) -> None:
        """Send a stream message."""
        self._send("stream", {"name": stream, "text": text})

    def show(
        self,
        bundle: Bundle,
        display_id: str | None = None,
        *,
        update: bool = False,
        metadata: Bundle | None = None,
    ) -> None:
        """Send `display_data`, or `update_display_data` with `update`."""
        transient = {"display_id": display_id} if display_id else {}
        self._send(
            "update_display_data" if update else "display_data",
            {"data": bundle, "metadata": metadata or {}, "transient": transient},
        )

    def send_comm(
        self,
        kind: str,
        content: Bundle,
        metadata: Bundle,
        buffers: tuple[bytes, ...] = (),
    ) -> None:
        """Send a message of a comm."""
        self._post(
            kind,
            content,
            metadata=metadata,
            ident=f"comm-{content['comm_id']}".encode(),
            buffers=list(buffers),
        )

    def ask(
        self, prompt: str, *, password: bool, still: Callable[[], bool], glance: int
    ) -> str | None:
        """Ask in the notebook."""
        if not self.watched:
            raise EOFError(NOBODY)
        if not still():
            return None
        # Not kernel.raw_input(): that asks in whatever cell runs now, and cannot be given up.
        socket, session = self._kernel.stdin_socket, self._kernel.session
        while socket.poll(0):
            socket.recv_multipart()  # answers that came too late
        request = {"prompt": prompt, "password": password}
        session.send(socket, "input_request", request, self._parent, ident=self._asker)
        while still():
            if socket.poll(glance):
                _, reply = session.recv(socket)
                text = str(reply["content"].get("value", "")) if reply else ""
                if text == "\x04":
                    raise EOFError(ENDED)
                return text
        return None

    def _send(self, kind: str, content: Bundle) -> None:
        self._post(kind, content, ident=self._kernel._topic(kind))

    def _post(self, kind: str, content: Bundle, **more: Any) -> None:
        """Send a message as part of this cell, from any thread.

        Not through sys.stdout or display(): those ask for the request that runs now. And by the
        kernel's own sending thread: for every other thread ipykernel would open a socket.
        """
        kernel = self._kernel
        send = functools.partial(
            kernel.session.send, kernel.iopub_socket, kind, content, parent=self._parent, **more
        )
        kernel.iopub_thread.io_loop.add_callback(send)

    def flush(self) -> None:
        """Return once everything has left the kernel."""
        sender, left = self._kernel.iopub_thread, threading.Event()
        sender.io_loop.add_callback(sender.schedule, left.set)
        _wait_for(left, sender.thread)

    def flush_streams(self) -> None:
        """Return once all that was printed has left the kernel."""
        # In the thread that sends: from here, each of the two would wait for it.
        sender, left = self._kernel.iopub_thread, threading.Event()
        for step in (sys.stdout.flush, sys.stderr.flush, left.set):
            sender.io_loop.add_callback(step)
        _wait_for(left, sender.thread)


def this_place() -> Place:
    """Return the place of the running cell, or the current streams where there is none.

    A captured cell (`%%capture`, `redirect_stdout`) has its streams replaced: text goes there.
    What waits in the streams leaves first: it came before, and would wait in every forked rank too.
    """
    kernel = running_kernel()
    in_cell = kernel is not None and type(sys.stdout).__module__ == "ipykernel.iostream"
    if in_cell and kernel.iopub_thread is not None:  # ipyparallel's engines have none
        cell = Cell(kernel)
        cell.flush_streams()
        return cell
    sys.stdout.flush()
    sys.stderr.flush()
    return Stream()


def _line_of(keyboard: TextIO) -> str:
    line = keyboard.readline()
    if not line:
        raise EOFError(ENDED)
    return line.removesuffix("\n")


@contextlib.contextmanager
def _unseen(keyboard: TextIO) -> Iterator[None]:
    """What is typed is not shown, but for the end of the line."""
    before = termios.tcgetattr(keyboard)
    hidden = [*before[:3], before[3] & ~termios.ECHO | termios.ECHONL, *before[4:]]
    termios.tcsetattr(keyboard, termios.TCSAFLUSH, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _wait_for(event: threading.Event, thread: threading.Thread) -> None:
    while not event.wait(1) and thread.is_alive():
        pass


def fresh_id() -> str:
    """Return a display id that no other output has."""
    return f"nbstate-{uuid.uuid4().hex}"
