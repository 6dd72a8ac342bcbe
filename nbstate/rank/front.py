"""What ties a rank to the notebook's page: drawings, widgets and questions.

The kernel's own ways to the page do not survive a fork: they refuse to send, or send to nobody. So
each is replaced here, once, by one that speaks through the rank's channel.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from nbstate.rank import stdin

if TYPE_CHECKING:
    from nbstate.rank.channel import Channel


def install(channel: Channel, marks: int) -> None:
    """Replace what was the kernel's in a rank that has just begun.

    Parameters
    ----------
    channel
        Takes the messages; not listening yet.
    marks
        Descriptor of the standard output's pipe, for marks.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    stdin.install(channel, kernel)
    if kernel is None:
        return  # a terminal: what is displayed there is text already
    from nbstate.rank import comms, display

    # Hooks of the shell run around cells and widget callbacks; a rank has neither of its own.
    shell.events.callbacks["pre_execute"].clear()
    shell.events.callbacks["post_execute"].clear()
    display.install(channel, marks, shell)
    comms.install(channel)


def finish() -> None:
    """The function is over: show the figures that it left open."""
    if "nbstate.rank.display" not in sys.modules:
        return
    try:
        sys.modules["nbstate.rank.display"].show_open_figures()
    except Exception:  # a figure that cannot be drawn must not cost the result
        traceback.print_exc()
