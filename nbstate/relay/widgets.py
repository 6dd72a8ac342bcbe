"""The kernel's mirror of the ranks' widgets.

The page talks to widgets by comms, and asks the kernel which there are when it is loaded again. So
the kernel keeps, for every comm of a rank, a proxy that hands the page's messages on, and for every
widget its last state: a page that is reloaded finds it, and the page at the end can tell it.
"""

from __future__ import annotations

import copy
import html
import re
import sys
from typing import TYPE_CHECKING, Any, Protocol

from nbstate.environment import running_kernel
from nbstate.wire import CommMessage

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from nbstate.job.ranks import Rank
    from nbstate.wire import Display

WIDGETS = "jupyter.widget"
REFERENCE = "IPY_MODEL_"


class Page(Protocol):
    """Where comm messages are published: the cell of the job."""

    def send_comm(
        self,
        kind: str,
        content: dict[str, Any],
        metadata: dict[str, Any],
        buffers: tuple[bytes, ...] = (),
    ) -> None:
        """Publish a comm message."""


class Widgets:
    """Every comm that the ranks of one job have opened.

    Parameters
    ----------
    send
        Sends a message to a rank.
    page
        Where the widgets are seen; None: nowhere, they are only mirrored.
    """

    def __init__(self, send: Callable[[int, object], None], page: Any) -> None:
        self._send = send
        self._page: Page | None = page
        self._proxies: dict[str, Proxy] = {}
        self._closed: set[str] = set()

    def take(self, rank: Rank, message: CommMessage) -> None:
        """Mirror what a rank's comm says, and pass it on to the page."""
        comm_id = message.content["comm_id"]
        if message.kind == "comm_open":
            self._open(rank.index, message)
        elif comm_id in self._proxies:
            if message.kind == "comm_msg":
                self._proxies[comm_id].update(message.content["data"], message.buffers)
            else:
                self._forget(self._proxies.pop(comm_id))
                self._closed.add(comm_id)
                rank.output.take_back(comm_id)
        if self._page is not None:
            self._page.send_comm(message.kind, message.content, message.metadata, message.buffers)

    def close(self) -> None:
        """The job is over and its page made: take the widgets off the page, keep their states."""
        for proxy in self._proxies.values():
            if proxy.open:
                self._forget(proxy)
                if self._page is not None:
                    content = {"comm_id": proxy.comm_id, "data": {}}
                    self._page.send_comm("comm_close", content, {})

    def describe(self, model_id: str) -> str:
        """Return a widget's last state as text, '' where it is unknown."""
        return describe(model_id, {key: proxy.state for key, proxy in self._proxies.items()})

    def closed(self, drawing: Display) -> bool:
        """Tell whether a drawing shows a widget that its rank has closed: a page shows it no more.

        `tqdm(leave=False)` closes its bar when it is full.
        """
        return drawing.widget in self._closed

    def state(self, model_id: str) -> dict[str, Any]:
        """Return a copy of a widget's last state, empty where it is unknown."""
        proxy = self._proxies.get(model_id)
        return copy.deepcopy(proxy.state) if proxy is not None else {}

    def _open(self, rank: int, message: CommMessage) -> None:
        content = message.content
        proxy = Proxy(content["comm_id"], content["target_name"], self._heard(rank), self._reply)
        proxy.update(content["data"], message.buffers)
        self._proxies[proxy.comm_id] = proxy
        kernel = running_kernel()
        if self._page is not None and kernel is not None:
            kernel.comm_manager.comms[proxy.comm_id] = proxy
            if proxy.target_name == WIDGETS:
                _known_widgets()[proxy.comm_id] = proxy

    def _heard(self, rank: int) -> Callable[[CommMessage], None]:
        return lambda message: self._send(rank, message)

    def _reply(self, content: dict[str, Any], metadata: dict[str, Any], buffers: Any) -> None:
        if self._page is not None:
            self._page.send_comm("comm_msg", content, metadata, tuple(buffers))

    def _forget(self, proxy: Proxy) -> None:
        proxy.open = False
        kernel = running_kernel()
        if kernel is not None:
            kernel.comm_manager.comms.pop(proxy.comm_id, None)
        _known_widgets().pop(proxy.comm_id, None)


class Proxy:
    """Stands in the kernel for a comm of a rank, and for the widget behind it.

    Not a subclass of ipykernel's comm: from version 7.4 that one has the page answer to the shell
    that published last, which is busy during a cell; this one is heard on the page's own subshell.
    """

    def __init__(
        self,
        comm_id: str,
        target_name: str,
        to_rank: Callable[[CommMessage], None],
        to_page: Callable[[dict[str, Any], dict[str, Any], Any], None],
    ) -> None:
        self.comm_id = self.model_id = comm_id
        self.target_name = target_name
        self.state: dict[str, Any] = {}
        self.open = True
        self._closed = False  # ipykernel sets it when the page closes the comm
        self._to_rank = to_rank
        self._to_page = to_page

    # -- as ipykernel's comm manager needs it

    def handle_msg(self, message: dict[str, Any]) -> None:
        """Pass on what the page says; a question about the state is answered here."""
        content = message["content"]
        if content["data"].get("method") == "request_state":
            self._tell_state(content["comm_id"])
            return
        buffers = tuple(bytes(buffer) for buffer in message.get("buffers", ()))
        self.update(content["data"], buffers)
        self._to_rank(CommMessage("comm_msg", content, _plain(message), buffers))

    def handle_close(self, message: dict[str, Any]) -> None:
        """The page closed the comm: so does the rank."""
        self.open = False
        self._to_rank(CommMessage("comm_close", message["content"], _plain(message)))

    # -- as ipywidgets needs it to tell a reloaded page of all widgets

    @property
    def _model_name(self) -> str:
        return str(self.state.get("_model_name", ""))

    @property
    def _model_module(self) -> str:
        return str(self.state.get("_model_module", ""))

    @property
    def _model_module_version(self) -> str:
        return str(self.state.get("_model_module_version", ""))

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the state, binary parts in place."""
        return copy.deepcopy(self.state)

    def _get_embed_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {
            "model_name": self._model_name,
            "model_module": self._model_module,
            "model_module_version": self._model_module_version,
            "state": self.get_state(),
        }

    def close(self) -> None:
        """Part of `Widget.close_all`; the widget is the rank's to close."""

    # -- the mirror

    def update(self, data: dict[str, Any], buffers: tuple[bytes, ...]) -> None:
        """Keep a state, or the part of it that a message changes."""
        if data.get("method", "update") not in ("update", "echo_update"):
            return
        part = copy.deepcopy(data.get("state", {}))
        for path, buffer in zip(data.get("buffer_paths", ()), buffers, strict=False):
            _put(part, path, buffer)
        self.state.update(part)

    def _tell_state(self, comm_id: str) -> None:
        state = self.get_state()
        buffers: list[bytes] = []
        paths: list[list[Any]] = []
        _take_out(state, [], paths, buffers)
        data = {"method": "update", "state": state, "buffer_paths": paths}
        self._to_page({"comm_id": comm_id, "data": data}, {}, buffers)


def describe(model_id: str, states: dict[str, dict[str, Any]]) -> str:
    """Return a widget as text, from the states of all.

    Examples
    --------
    >>> states = {"a": {"_model_name": "HBoxModel", "children": ["IPY_MODEL_b", "IPY_MODEL_c"]},
    ...           "b": {"_model_name": "FloatProgressModel", "value": 5.0, "max": 10.0},
    ...           "c": {"_model_name": "HTMLModel", "value": " 5/10"}}
    >>> describe("a", states)
    '|█████     | 5/10'
    """
    state = states.get(model_id, {})
    name = str(state.get("_model_name", "")).removesuffix("Model")
    if "children" in state:
        parts = [describe(child.removeprefix(REFERENCE), states) for child in state["children"]]
        return ("" if name == "HBox" else "\n").join(part for part in parts if part)
    told = _TOLD.get(name, _told_by_value)
    return told(state, str(state.get("description", "")))


def _told_by_value(state: dict[str, Any], label: str) -> str:
    value = state.get("value", state.get("index"))
    if value is None or isinstance(value, (bytes, memoryview)):
        return label or str(state.get("_model_name", "")).removesuffix("Model")
    return f"{label}: {value}" if label else str(value)


def _told_by_text(state: dict[str, Any], label: str) -> str:
    text = html.unescape(re.sub(r"<[^>]*>", "", str(state.get("value", ""))))
    return (label + text).replace("\u2007", " ")  # tqdm's space that is as wide as a figure


def _told_by_outputs(state: dict[str, Any], _label: str) -> str:
    return "".join(_output_text(output) for output in state.get("outputs", ())).rstrip("\n")


def _told_by_bar(state: dict[str, Any], label: str) -> str:
    return f"{label} {_bar(state)}".lstrip()


_TOLD: dict[str, Callable[[dict[str, Any], str], str]] = {
    "Output": _told_by_outputs,
    "FloatProgress": _told_by_bar,
    "IntProgress": _told_by_bar,
    "HTML": _told_by_text,
    "HTMLMath": _told_by_text,
    "Label": _told_by_text,
    "Button": lambda _state, label: f"[{label}]",
    "ToggleButton": lambda _state, label: f"[{label}]",
}


def _bar(state: dict[str, Any]) -> str:
    low, high = float(state.get("min") or 0), float(state.get("max") or 0)
    share = (float(state.get("value") or 0) - low) / (high - low) if high > low else 0.0
    full = round(10 * min(max(share, 0.0), 1.0))
    return f"|{'█' * full}{' ' * (10 - full)}|"


def _output_text(output: dict[str, Any]) -> str:
    if output.get("output_type") == "stream":
        return "".join(output.get("text", ""))
    return "".join(output.get("data", {}).get("text/plain", "")) + "\n"


def _known_widgets() -> MutableMapping[str, Any]:
    """Return ipywidgets' own table of widgets, from which a reloaded page is told."""
    module = sys.modules.get("ipywidgets.widgets.widget")
    found: MutableMapping[str, Any] | None = getattr(module, "_instances", None)
    if found is None:
        found = getattr(getattr(module, "Widget", None), "widgets", None)  # ipywidgets 7
    return {} if found is None else found


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    return dict(message.get("metadata") or {})


def _put(state: Any, path: list[Any], value: bytes) -> None:
    for key in path[:-1]:
        state = state[key]
    state[path[-1]] = value


def _take_out(value: Any, path: list[Any], paths: list[list[Any]], buffers: list[bytes]) -> None:
    """Move the binary parts of a state into `buffers`, and where they were into `paths`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(items):
        if isinstance(part, (bytes, memoryview)):
            paths.append([*path, key])
            buffers.append(bytes(part))
            value[key] = None
        elif isinstance(part, (dict, list)):
            _take_out(part, [*path, key], paths, buffers)
