"""Questions of ranks, asked one after the other where the job was launched."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from nbstate.wire import Answer, Question

if TYPE_CHECKING:
    from nbstate.job import Job
    from nbstate.job.ranks import Rank
    from nbstate.view.publish import Place
    from nbstate.wire import Unasked

GLANCE = 50
"""Milliseconds between two looks at whether a question still matters."""

_one_prompt = threading.Lock()  # the kernel has one channel for answers, whichever job asks


class Questions:
    """Asks what the ranks of one job want to know; a question that nobody waits for is dropped."""

    def __init__(self, job: Job, place: Place) -> None:
        self._job = job
        self._place = place
        self._asked: queue.SimpleQueue[tuple[Rank, Question]] = queue.SimpleQueue()
        self._open: set[tuple[int | None, int]] = set()  # by process: a new one counts from 1 again
        self._thread: threading.Thread | None = None

    def ask(self, rank: Rank, question: Question) -> None:
        """Queue a question; its answer is sent to the rank."""
        self._open.add((rank.pid, question.number))
        self._asked.put((rank, question))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nbstate-ask", daemon=True)
            self._thread.start()

    def withdraw(self, rank: Rank, message: Unasked) -> None:
        """Ask a question no longer."""
        self._open.discard((rank.pid, message.number))

    def _serve(self) -> None:
        while not self._job.done:
            try:
                rank, question = self._asked.get(timeout=1)
            except queue.Empty:
                continue
            self._job.tell(rank.index, self._answer(rank, question))
            self._open.discard((rank.pid, question.number))

    def _matters(self, rank: Rank, question: Question) -> bool:
        running = self._job.state == "running" and rank.state in ("starting", "running")
        return running and (rank.pid, question.number) in self._open

    def _answer(self, rank: Rank, question: Question) -> Answer:
        tag = f"rank {rank.index} " if self._job.world_size > 1 else ""
        prompt = tag + question.prompt
        try:
            with _one_prompt:
                text = self._place.ask(
                    prompt,
                    password=question.password,
                    still=lambda: self._matters(rank, question),
                    glance=GLANCE,
                )
        except EOFError as error:
            return Answer(question.number, "eof", str(error))
        if text is None:  # a debugger that has caught the interrupt leaves when its input ends
            return Answer(question.number, "eof", "the run is being stopped")
        return Answer(question.number, "text", text)
