"""Drawings of a rank: what `display` and matplotlib show goes to the kernel, in order with text.

A drawing travels as a message; a mark in the standard output holds its place in the text.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.displaypub import DisplayPublisher
from jupyter_client.jsonutil import json_default

from nbstate.rank import capture
from nbstate.rank.channel import undisturbed
from nbstate.rank.outputs import captures
from nbstate.wire import ClearOutput, Display, mark

if TYPE_CHECKING:
    from nbstate.rank.channel import Channel

INLINE = "matplotlib_inline.backend_inline"


class Publisher(DisplayPublisher):
    """Stands in for the kernel's publisher."""

    channel: Channel
    marks: int

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def take_over(self, channel: Channel, marks: int, shell: Any) -> None:
        """Publish what this process displays from now on."""
        self.channel, self.marks = channel, marks
        shell.display_pub = self

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: str | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        """Send a mime bundle to the kernel."""
        if self.channel.inherited:
            return
        bundle = as_json(data), as_json(metadata or {})
        if captures.draw(*bundle, update=update):
            return
        drawing = Display(0, *bundle, as_json(transient or {}), update)
        if update:  # it stands where its drawing stands
            self.channel.send(drawing)
        else:
            self._place(drawing)

    def clear_output(self, wait: bool = False) -> None:
        """Have the kernel clear what this rank has shown."""
        if not self.channel.inherited and not captures.clear(wait=wait):
            self._place(ClearOutput(0, wait))

    def _place(self, message: Display | ClearOutput) -> None:
        """Mark a place in the text, and send what stands there."""
        capture.flush()
        # Both or neither: at a mark without its message every reader waits.
        with undisturbed(), self._lock:
            number = next(self._numbers)
            os.write(self.marks, mark(number))
            self.channel.send(replace(message, number=number))


def as_json(value: dict[str, Any]) -> dict[str, Any]:
    """Return a mime bundle as the page will get it: pictures as base64, numbers as numbers."""
    plain: dict[str, Any] = json.loads(json.dumps(value, default=json_default))
    return plain


@functools.cache
def publisher_for(shell: Any) -> Publisher:
    """Return what will publish in a rank. The kernel makes it, once, and every rank has it."""
    return Publisher(parent=shell)


def install(channel: Channel, marks: int, shell: Any) -> None:
    """Send what this rank displays through `channel`."""
    publisher_for(shell).take_over(channel, marks, shell)
    pylab = sys.modules.get("matplotlib._pylab_helpers")
    if pylab is not None:  # figures that the kernel left open are the kernel's
        pylab.Gcf.figs.clear()


def show_open_figures() -> None:
    """Show the figures that the inline backend would show at the end of a cell."""
    if INLINE in sys.modules and "matplotlib.pyplot" in sys.modules:
        sys.modules[INLINE].show(close=True)
