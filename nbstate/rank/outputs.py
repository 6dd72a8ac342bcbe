"""`with Output():` inside a rank: what is shown in it is set as the widget's own state.

In the kernel the page is told to send the running cell's output there. That is the cell of the
board, with the output of every rank; so a rank keeps the capture to itself.
"""

from __future__ import annotations

import io
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Captures:
    """The `Output` widgets that are open as context managers, one stack for each thread."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._known: weakref.WeakKeyDictionary[Any, Capture] = weakref.WeakKeyDictionary()

    @property
    def stack(self) -> list[Capture]:
        """The open captures of this thread, the innermost last."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        found: list[Capture] = self._local.stack
        return found

    def enter(self, widget: Any) -> None:
        """Have a widget take what this thread shows, until `leave`."""
        capture = self._known.setdefault(widget, Capture(widget))
        capture.enter()
        self.stack.append(capture)

    def leave(self) -> None:
        """Go back to what took it before."""
        self.stack.pop().leave()

    def draw(self, data: dict[str, Any], metadata: dict[str, Any], *, update: bool) -> bool:
        """Show a drawing in the innermost capture; False where there is none."""
        if update or not self.stack:
            return False
        self.stack[-1].add({"output_type": "display_data", "data": data, "metadata": metadata})
        return True

    def clear(self, *, wait: bool) -> bool:
        """Clear the innermost capture; False where there is none."""
        if not self.stack:
            return False
        self.stack[-1].clear(wait=wait)
        return True


class Capture:
    """One `Output` widget that takes text and drawings."""

    def __init__(self, widget: Any) -> None:
        self._widget: Callable[[], Any] = weakref.ref(
            widget
        )  # the table of captures must not keep it alive
        self._clear_at_next = False
        self._before: list[tuple[Any, Any]] = []

    def add(self, output: dict[str, Any]) -> None:
        """Append an output, joining text to text."""
        widget = self._widget()
        shown = () if self._clear_at_next else widget.outputs
        self._clear_at_next = False
        last = shown[-1] if shown else {}
        if output["output_type"] == "stream" and last.get("name") == output.get("name"):
            output = {**output, "text": last["text"] + output["text"]}
            shown = shown[:-1]
        widget.outputs = (*shown, output)

    def clear(self, *, wait: bool) -> None:
        """Show nothing any more, now or once something new comes."""
        self._clear_at_next = wait
        if not wait:
            self._widget().outputs = ()

    def enter(self) -> None:
        """Take the streams."""
        self._before.append((sys.stdout, sys.stderr))
        sys.stdout, sys.stderr = Into(self, "stdout"), Into(self, "stderr")

    def leave(self) -> None:
        """Give the streams back."""
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = self._before.pop()


class Into(io.TextIOBase):
    """A text stream whose lines are outputs of a widget."""

    def __init__(self, capture: Capture, name: str) -> None:
        self._capture = capture
        self._name = name
        self._pending = ""

    def writable(self) -> bool:
        """Tell that this can be written to."""
        return True

    def write(self, text: str) -> int:
        """Take text; it is shown with the end of its line."""
        self._pending += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Show what is pending."""
        if self._pending:
            text, self._pending = self._pending, ""
            self._capture.add({"output_type": "stream", "name": self._name, "text": text})


captures = Captures()


def install() -> None:
    """Replace the two methods that make an `Output` a context manager, once ipywidgets is there."""
    ipywidgets = sys.modules.get("ipywidgets")
    if ipywidgets is not None:
        ipywidgets.Output.__enter__ = _enter
        ipywidgets.Output.__exit__ = _exit


def _enter(widget: Any) -> None:
    captures.enter(widget)


def _exit(
    _widget: Any,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool:
    if error is not None:
        import traceback

        traceback.print_exception(kind, error, trace)
    captures.leave()
    # As in the kernel: an error is shown in the widget and goes no further. An interrupt does.
    return isinstance(error, Exception)
