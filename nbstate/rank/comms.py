"""Widgets of a rank: their traffic goes through the kernel, both ways.

`ipywidgets` speaks through comms of ipykernel, all of which leave by one method; that method is
replaced. What the page says arrives on the channel and is handed to the comm in a thread of its
own, so that a callback may take its time or ask a question.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
import traceback
from typing import TYPE_CHECKING, Any

from nbstate.environment import running_kernel, running_shell
from nbstate.rank import capture, outputs
from nbstate.rank.display import as_json
from nbstate.wire import CommMessage

if TYPE_CHECKING:
    from nbstate.rank.channel import Channel


def prepare() -> None:
    """Import in the kernel what its forked ranks will need."""
    import ipykernel.comm.comm  # noqa: F401


def install(channel: Channel, *, forked: bool) -> None:
    """Send the traffic of this rank's widgets through `channel`.

    Parameters
    ----------
    forked
        This process has the kernel's ipykernel; a fresh one has no kernel to make comms.
    """
    comms = RankComms(channel)
    if forked:
        _take_over_ipykernels(comms)
    elif importlib.util.find_spec("comm") is not None:
        _provide_own(comms)
    else:
        _provide_old(comms)
    channel.handlers[CommMessage] = comms.take


def _take_over_ipykernels(comms: RankComms) -> None:
    import ipykernel.comm.comm as module

    # ipykernel 6.17 has one class with a private method; later ones a base class with a public one.
    base: Any = getattr(module, "BaseComm", module.Comm)
    name = "publish_msg" if hasattr(base, "publish_msg") else "_publish_msg"

    def publish(comm: Any, kind: str, *args: Any, **kwargs: Any) -> None:
        if comm.kernel is None:  # ipywidgets sends nothing while it thinks there is no kernel
            comm.kernel = running_kernel()
        comms.publish(comm, kind, *args, **kwargs)

    setattr(base, name, publish)


def _provide_own(comms: RankComms) -> None:
    import comm
    from comm.base_comm import BaseComm

    class RankComm(BaseComm):
        def publish_msg(self, msg_type: str, *args: Any, **kwargs: Any) -> None:
            comms.publish(self, msg_type, *args, **kwargs)

    comm.create_comm = RankComm


def _provide_old(comms: RankComms) -> None:
    # Before the package comm, a widget's comm was ipykernel's, and wanted a kernel.
    from ipykernel.comm import Comm

    old: Any = Comm
    running_shell().kernel = old.kernel = _NoKernel()

    def publish(comm: Any, kind: str, *args: Any, **kwargs: Any) -> None:
        comms.publish(comm, kind, *args, **kwargs)

    old._publish_msg = publish


class _NoKernel:
    """What ipywidgets 7 and the comms of ipykernel 6.17 want of a kernel, where there is none."""

    shell = None

    def __init__(self) -> None:
        self.comm_manager = self
        self.comms: dict[str, Any] = {}

    def register_comm(self, comm: Any) -> None:
        self.comms[comm.comm_id] = comm

    def unregister_comm(self, comm: Any) -> None:
        self.comms.pop(comm.comm_id)

    def register_target(self, *_: Any) -> None:
        """No page opens a comm here."""


class RankComms:
    """Carries the messages of every comm of this process."""

    def __init__(self, channel: Channel) -> None:
        self._inbox: queue.SimpleQueue[CommMessage] = queue.SimpleQueue()
        self._listens = False
        self._channel = channel
        self._own: set[str] = set()

    def publish(
        self,
        comm: Any,
        kind: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        """Send what a comm has to say; stands in for the method of ipykernel's comms."""
        if self._channel.inherited:
            return
        if kind == "comm_open":
            self._own.add(comm.comm_id)
            outputs.install()
        elif kind == "comm_close" and comm.comm_id not in self._own:
            return  # a copy of one of the kernel's widgets was collected here; the real one lives
        capture.flush()
        content = as_json({"data": data or {}, "comm_id": comm.comm_id, **keys})
        raw = tuple(bytes(buffer) for buffer in buffers or ())
        self._channel.send(CommMessage(kind, content, as_json(metadata or {}), raw))

    def take(self, message: CommMessage) -> None:
        """Take what the page says; called in the channel's thread."""
        self._inbox.put(message)
        if not self._listens:
            self._listens = True
            threading.Thread(target=self._listen, name="nbstate-widgets", daemon=True).start()

    def _listen(self) -> None:
        """Hand what the page says to the comm that it is for, for ever."""
        while True:
            message = self._inbox.get()
            try:
                self._deliver(message)
            except Exception:  # a callback of the user's: told in the rank's text, as a cell would
                traceback.print_exc()
            capture.flush()

    def _deliver(self, message: CommMessage) -> None:
        comm = _comms().get(message.content["comm_id"])
        if comm is None:
            return
        request = {
            "content": message.content,
            "metadata": message.metadata,
            "buffers": [memoryview(buffer) for buffer in message.buffers],
            "header": {"msg_type": message.kind},
            "parent_header": {},
        }
        if message.kind == "comm_close":
            comm.handle_close(request)
        else:
            comm.handle_msg(request)


def _comms() -> dict[str, Any]:
    kernel = running_kernel()
    if kernel is None:
        import comm

        return comm.get_comm_manager().comms
    found: dict[str, Any] = kernel.comm_manager.comms
    return found
