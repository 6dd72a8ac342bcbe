"""The page's side of widgets: what a kernel's comm messages make of them, and a way to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kernels import Cell

if TYPE_CHECKING:
    from tests.kernels import Kernel

WIDGET = "application/vnd.jupyter.widget-view+json"


class Models:
    """Every widget that the messages of some cells have told of."""

    def __init__(self, *cells: Cell) -> None:
        self.states: dict[str, dict[str, Any]] = {}
        self.custom: dict[str, list[Any]] = {}
        self.closed: set[str] = set()
        for cell in cells:
            for message in cell.messages:
                self._take(message["msg_type"], message["content"])

    def _take(self, kind: str, content: dict[str, Any]) -> None:
        comm_id = content.get("comm_id", "")
        if kind == "comm_open":
            self.states[comm_id] = dict(content["data"]["state"])
        elif kind == "comm_close":
            self.closed.add(comm_id)
        elif kind == "comm_msg" and content["data"]["method"] == "update":
            self.states.setdefault(comm_id, {}).update(content["data"]["state"])
        elif kind == "comm_msg" and content["data"]["method"] == "custom":
            self.custom.setdefault(comm_id, []).append(content["data"]["content"])

    def named(self, name: str) -> list[str]:
        """Return the ids of the widgets with this model name."""
        return [key for key, state in self.states.items() if state.get("_model_name") == name]

    def board(self) -> str:
        """Return the id of the first board."""
        return next(key for key, state in self.states.items() if "ranks" in state)

    def changes(self) -> list[list[Any]]:
        """Return what the board was told of the ranks, in order."""
        said = self.custom.get(self.board(), [])
        added = sorted((m for m in said if m["op"] == "add"), key=lambda m: m["n"])
        assert [m["n"] for m in added] == list(range(1, len(added) + 1))
        return [change for message in added for change in message["c"]]

    def text(self, rank: int) -> str:
        """Return the text of one rank that the board was told."""
        return "".join(c[2] for c in self.changes() if c[0] == rank and c[1] in (0, 1))


def tell(kernel: Kernel, model_id: str, data: dict[str, Any]) -> Cell:
    """Send a widget's message as the page does; the cell collects what is said in answer to it."""
    client = kernel._client
    message = client.session.msg("comm_msg", {"comm_id": model_id, "data": data})
    client.shell_channel.send(message)
    answer = kernel.cells[message["msg_id"]] = Cell(message["msg_id"])
    return answer


def click(kernel: Kernel, model_id: str, content: dict[str, Any]) -> Cell:
    """Send a custom message to a widget."""
    return tell(kernel, model_id, {"method": "custom", "content": content})


def change(kernel: Kernel, model_id: str, **state: Any) -> Cell:
    """Change a widget's state as a slider's handle does."""
    return tell(kernel, model_id, {"method": "update", "state": state, "buffer_paths": []})
