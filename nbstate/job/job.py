"""The user's handle on a run: follow it, wait for it, stop it, and what its ranks returned."""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import os
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbstate.job import logs, whereabouts
from nbstate.job.interrupts import Interrupts
from nbstate.job.run import Run
from nbstate.mistakes import told_at_the_call
from nbstate.results import RankResults

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from nbstate.view.timeline import Timeline

_started: weakref.WeakSet[Job] = weakref.WeakSet()


class Job(Run):
    """A function that runs on N ranks.

    Made by `launch` and by ``notebook_launcher(..., wait=False)``. As the last line of a cell it
    shows its board.

    Attributes
    ----------
    name
        The function's name.
    ranks : tuple of Rank
        One handle per local rank, with its ``pid``, ``state``, ``stdout`` and more.
    state
        ``"starting"``, ``"running"``, ``"stopping"``, ``"done"``, ``"failed"`` or ``"stopped"``.
    log_dir
        Folder with the whole output of each rank.
    notes
        What else the user should know, in one line each.

    Examples
    --------
    >>> def train(lr):
    ...     print(f"{lr=}")
    ...     return PartialState().process_index * lr
    >>> job = launch(train, 0.1, num_processes=2)
    >>> job.wait()
    RankResults([0.0, 0.1])
    >>> job.ranks[0].stdout.splitlines()
    ['lr=0.1']
    """

    _interrupts: Interrupts | None = None

    # -- what the user does

    def wait(self, timeout: float | None = None) -> RankResults:
        """Wait for every rank and return what they returned.

        Parameters
        ----------
        timeout
            Seconds to wait at most; None: for ever. The run goes on when they are over.

        Returns
        -------
        RankResults
            One value per local rank, in rank order; per rank of all nodes with `gather_results`.

        Raises
        ------
        TypeError
            `timeout` is no number.
        RankError
            A rank failed.
        TimeoutError
            The time is up; the run goes on.
        KeyboardInterrupt
            The waiting was interrupted; the run goes on.

        Examples
        --------
        >>> job.wait(timeout=60)
        RankResults([0.0, 0.1])
        """
        with told_at_the_call():
            _check_seconds(timeout)
        try:
            if self._over.wait(timeout):
                self.wait_until_shown()
            else:
                raise TimeoutError(
                    f"{self.name} is still running after {timeout:g} s of waiting; it goes on"
                )
        except KeyboardInterrupt:
            text = f"waiting for {self.name} was interrupted; it goes on: job.stop() ends it"
            print(text)  # noqa: T201 - said in the cell that waited
            raise
        return self.results()

    def __await__(self) -> Generator[Any, None, RankResults]:
        return asyncio.to_thread(self._wait_quietly).__await__()

    def _wait_quietly(self) -> RankResults:
        self.wait_until_shown()
        return self.results()

    def results(self) -> RankResults:
        """Return what the ranks of a finished run returned.

        Raises
        ------
        RankError
            A rank failed.
        RuntimeError
            The run is not over; `wait` waits for it.

        Examples
        --------
        >>> job.results()
        RankResults([0.0, 0.1])
        """
        if not self.done:
            raise RuntimeError(f"{self.name} is still running: job.wait() waits for its results")
        if self.broken is not None:
            raise self.broken
        if self.error is not None:
            raise self.error.with_traceback(None)
        returned = {**self.nodes.values, **self._values}
        return RankResults(returned[rank] for rank in sorted(returned))

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every rank that is at work. One that catches it goes on.

        Examples
        --------
        >>> import time
        >>> job = launch(time.sleep, 60, num_processes=2)
        >>> job.interrupt()
        """
        self.loop.ask(self.loop.interrupt)

    def stop(self) -> None:
        """End the run: KeyboardInterrupt in every rank, SIGTERM after `grace`, then SIGKILL.

        Returns at once; `wait` tells when all are gone.

        Examples
        --------
        >>> import time
        >>> job = launch(time.sleep, 60, num_processes=2)
        >>> job.stop()
        >>> job.wait()
        Traceback (most recent call last):
        JobStoppedError: sleep was stopped before its ranks were done...
        """
        self.loop.ask(lambda: self.loop.stop("stop"))

    def kill(self) -> None:
        """End every rank and all that they started, without asking.

        Examples
        --------
        >>> import time
        >>> job = launch(time.sleep, 60, num_processes=2)
        >>> job.kill()
        """
        self.loop.ask(self.loop.kill)

    def stacks(self) -> str:
        """Return where each rank is, as text: the collective it waits in and its stack.

        Equal ranks stand together, the odd one out first. It works while the ranks are stuck.

        Examples
        --------
        >>> job.stacks()
        'no rank of train is at work'
        """
        return whereabouts.stacks(self)

    def logs(self, rank: int | None = None) -> str:
        """Return the whole text of one rank, or of all of them one after the other.

        Raises
        ------
        IndexError
            This node has no such rank.

        Examples
        --------
        >>> print(job.logs())
        --- rank 0
        lr=0.1
        --- rank 1
        lr=0.1
        """
        if rank is None:
            return "".join(f"--- rank {r.index}\n{r.output.whole()}" for r in self.ranks)
        for found in self.ranks:
            if found.index == rank:
                return found.output.whole()
        first, last = self.ranks[0].index, self.ranks[-1].index
        raise IndexError(f"rank {rank!r}: the ranks here are {first} to {last}")

    def timeline(self) -> Timeline:
        """Return what the ranks called together and when, for jobs with ``trace=True``.

        As the last line of a cell it shows a picture; its ``table()`` is a pandas frame. What
        DistributedDataParallel reduces in a backward pass is ``all_reduce_ddp_bucket`` there; what
        the layers of tensor parallel models call has the names of torch's functional collectives.
        Of a run that was restarted it has the last attempt.

        Examples
        --------
        >>> def mean():
        ...     PartialState()
        ...     return reduce(torch.ones(1)).item()
        >>> job = launch(mean, num_processes=2, trace=True)
        >>> results = job.wait()
        >>> print(job.timeline())
        each rank: 1 collective
        ...
        """
        from nbstate.view.timeline import Timeline

        return Timeline(self._spans)

    def export_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline in Chrome's trace format, which https://ui.perfetto.dev opens.

        Examples
        --------
        >>> job.export_trace("trace.json")
        """
        self.timeline().export(path)

    def __repr__(self) -> str:
        return f"<job {self.name}: {self.state}, {self.where}>"

    # -- what the launcher does

    def start(self) -> None:
        """Start the ranks; returns once all of them exist.

        Raises
        ------
        OSError, RuntimeError
            A process, pipe, file or thread could not be made. What had been started is gone again.
        """
        if self._interrupts is not None and self._interrupts.count:
            self.give_up()
            return
        _end_with_the_interpreter()
        _started.add(self)
        # Not the thread that runs cells: see nbstate.start.fork.
        thread = threading.Thread(target=self._live, name=f"nbstate-job-{self.number}", daemon=True)
        try:
            thread.start()
        except BaseException:  # there may be no further one
            self.give_up()
            raise
        self._ready.wait()
        if self.broken is not None:
            self._over.wait()
            raise self.broken
        logs.remove_old()  # while the ranks begin: here nobody waits for it

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """An interrupt of what is inside ends the run, a second one at once.

        Raises
        ------
        KeyboardInterrupt
            It was interrupted, and every rank is gone.
        """
        self._interrupts = Interrupts(self._pressed)
        with told_at_the_call(KeyboardInterrupt), self._interrupts:
            yield
            if self._interrupts.count:
                self.wait_until_shown()

    def _pressed(self) -> None:
        assert self._interrupts is not None
        if self._interrupts.count == 1:
            self.stop()
        else:
            self.kill()

    def wait_until_shown(self) -> None:
        """Wait until every rank is gone, however it ended, and all that it left is shown."""
        self._over.wait()
        for view in self._views:
            shown = view()
            if shown is not None:
                shown.join()


def _check_seconds(timeout: object) -> None:
    if timeout is not None and not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout={timeout!r}: expected seconds, or None to wait for ever")


@functools.cache
def _end_with_the_interpreter() -> None:
    """Have an exit end the ranks; multiprocessing would wait for them, perhaps for ever.

    Exit handlers run in reverse order, so this one must be newer than multiprocessing's.
    """
    importlib.import_module("multiprocessing.util")
    atexit.register(_end_all, os.getpid())


def _end_all(kernel: int) -> None:
    if os.getpid() != kernel:  # a child that was forked beside the ranks: they are not its own
        return
    for job in jobs():
        job.kill()
        job.join()


def jobs() -> list[Job]:
    """Return the jobs whose ranks are alive, oldest first.

    Examples
    --------
    >>> import time
    >>> job = launch(time.sleep, 60, num_processes=2)
    >>> jobs() == [job]
    True
    >>> job.stop()
    """
    alive = [job for job in _started if not job.done]
    return sorted(alive, key=lambda job: job.number)
