"""A rank that stays: it does one task after another, in its main thread.

    channel's thread --Task--> queue --> main thread: call it, tell how it went --TaskDone--> kernel
                     --Cut---> sockets shut down, so that a collective that waits on them fails

An interrupt counts only while a task is being done: one that comes too late meets nobody.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbstate import travel, values
from nbstate.rank import bootstrap, capture, cells, failure, front, groups, timing, torchlog, trace
from nbstate.wire import READY, Cut, End, Failed, Task, TaskDone

if TYPE_CHECKING:
    from nbstate.rank.channel import Channel


def serve() -> None:
    """Do what the kernel asks until it asks no more."""
    assert bootstrap.current is not None
    assert bootstrap.talk is not None
    cells.introduce(bootstrap.current.rank, bootstrap.current.world_size)
    Server(bootstrap.talk).run()


class Server:
    """Does the tasks that come through a rank's channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._given: queue.SimpleQueue[tuple[Task, int | None] | None] = queue.SimpleQueue()
        self._busy = False
        signal.signal(signal.SIGINT, self._interrupted)
        channel.handlers[Cut] = lambda order: groups.cut(order.sockets)
        channel.handlers[End] = lambda _: self._given.put(None)
        channel.handlers[Task] = self._take

    def run(self) -> None:
        """Tell that tasks may come, and do them until the end is told."""
        payload, _ = values.dump(None, "nothing")
        self._channel.send(TaskDone(READY, 0.0, payload))
        while (given := self._given.get()) is not None:
            self._do(*given)

    def _take(self, task: Task, descriptor: int | None = None) -> None:
        self._given.put((task, descriptor))

    def _interrupted(self, _number: int, _frame: object) -> None:
        if self._busy:
            raise KeyboardInterrupt

    def _do(self, task: Task, descriptor: int | None) -> None:
        began = time.perf_counter()
        memory: int | None = None
        try:
            value = self._value_of(task, descriptor)
            payload, raw = travel.dump_back(value, "result")
            buffers, memory, length = values.share(raw)
            done = TaskDone(task.number, 0.0, payload, buffers, length)
        except BaseException as error:
            self._busy = False
            done = TaskDone(task.number, 0.0, failed=_described(error))
        torchlog.speak()
        front.finish()
        capture.flush()
        self._channel.send(replace(done, seconds=time.perf_counter() - began), memory)
        if memory is not None:
            os.close(memory)

    def _value_of(self, task: Task, descriptor: int | None) -> Any:
        try:
            self._busy = True
            buffers = values.map_shared(task.buffers, descriptor)
            function, args, kwargs = travel.load(task.payload, buffers)
            timing.begin_steps()
            trace.begin_task(task.number)
            return bootstrap.call(function, args, kwargs)
        finally:
            self._busy = False
            if descriptor is not None:
                os.close(descriptor)


def _described(error: BaseException) -> Failed:
    if isinstance(error, cells.CellRaisedError):
        told = replace(failure.describe(error.error), traceback=error.traceback)
        advice = _advice(error.error, in_cell=True)
    else:
        told = failure.describe(error)
        advice = _advice(error, in_cell=False)
    return replace(told, traceback=f"{told.traceback.rstrip()}\n{advice}\n") if advice else told


def _advice(error: BaseException, *, in_cell: bool) -> str:
    if cells.lacks_group(error):
        return "the ranks have no process group yet: PartialState() in a %%ranks cell makes it"
    if isinstance(error, NameError) and error.name is not None and not in_cell:
        return f"the ranks have no {error.name}: session.push({error.name}=...) gives it to them"
    return ""
