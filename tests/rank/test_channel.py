"""What a rank tells its kernel goes out whole, wherever an interrupt falls."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from nbstate.rank.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kernels import Kernel

BIG = "x" * (1 << 22)


class Hearer(threading.Thread):
    """Plays the kernel: it interrupts the rank once its message has begun, then reads the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._connection, far = multiprocessing.Pipe()
        self.channel = Channel(far)
        self.close = far.close
        self.heard: list[Any] = []

    def run(self) -> None:
        self._connection.poll(None)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        with self._connection:
            try:
                while True:
                    self.heard.append(self._connection.recv())
            except EOFError:
                pass


@pytest.fixture
def hearer() -> Iterator[Hearer]:
    # What a shell has started in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hearer = Hearer()
    hearer.start()
    yield hearer
    hearer.close()
    hearer.join()
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_within_a_message_comes_after_it(hearer: Hearer) -> None:
    with pytest.raises(KeyboardInterrupt):
        hearer.channel.send(BIG)
    hearer.channel.send("next")
    hearer.close()
    hearer.join()
    assert hearer.heard == [BIG, "next"]


def test_an_interrupt_within_a_message_is_the_users_to_handle(hearer: Hearer) -> None:
    handled: list[int] = []

    def mine(number: int, _frame: object) -> None:
        handled.append(number)
        hearer.channel.send("handled")
        raise TimeoutError

    before = signal.signal(signal.SIGINT, mine)
    try:
        with pytest.raises(TimeoutError):
            hearer.channel.send(BIG)
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
    hearer.close()
    hearer.join()
    assert hearer.heard == [BIG, "handled"]
    assert handled == [signal.SIGINT]


DRAWS = """%%ranks
from IPython.display import display
bundle = {"text/plain": "", "image/svg+xml": "x" * 3_000_000}
print("up")
while True:
    display(bundle, raw=True)
"""


def test_a_loop_that_draws_can_be_interrupted_again_and_again(kernel: Kernel) -> None:
    kernel.run("%load_ext nbstate\nimport nbstate\nsession = nbstate.Session(2)")
    for _ in range(5):
        cell = kernel.start(DRAWS)
        kernel.read_until(lambda cell=cell: "up" in cell.stdout)  # type: ignore[misc]
        kernel.interrupt()
        kernel.wait(cell)
        assert cell.error is not None
        assert "interrupted; the ranks keep their variables" in cell.error.evalue
    assert kernel.run("%%ranks\nlen(bundle)").stdout == "[0-1] 2\n"
    kernel.run("session.close()")


def test_a_handler_of_the_users_that_draws_meets_no_drawing_half_done(kernel: Kernel) -> None:
    cell = kernel.run("""
        import os, signal, threading
        from IPython.display import display
        from nbstate import notebook_launcher
        def train():
            drawn, handled = threading.Event(), threading.Event()
            def handler(*_):
                display({"text/plain": "handled"}, raw=True)
                handled.set()
            def press():
                while not drawn.is_set():
                    handled.clear()
                    os.kill(os.getpid(), signal.SIGINT)
                    handled.wait()
            signal.signal(signal.SIGINT, handler)
            presses = threading.Thread(target=press)
            presses.start()
            for _ in range(50):
                display({"text/plain": "", "image/svg+xml": "x" * 100_000}, raw=True)
            drawn.set()
            presses.join()
            return "drawn"
        list(notebook_launcher(train, num_processes=1, isolate=True, view="silent"))
    """)
    assert cell.result == "['drawn']"
