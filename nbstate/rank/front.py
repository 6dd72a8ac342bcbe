"""What ties a rank to the notebook's page: drawings, widgets and questions.

The kernel's own ways to the page do not survive a fork: they refuse to send, or send to nobody. So
each is replaced here, once, by one that speaks through the rank's channel.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
import traceback
from typing import TYPE_CHECKING, Any

from nbstate.environment import answers_questions, running_shell
from nbstate.rank import stdin

if TYPE_CHECKING:
    from nbstate.rank.call import Surroundings
    from nbstate.rank.channel import Channel


_kernels: tuple[Any, Any, bool] = (None, None, False)
"""The kernel's shell and kernel, and whether its page answers; looked up once for all ranks."""


def prepare() -> None:
    """Do in the kernel, once, what its forked ranks would each do for themselves."""
    global _kernels  # noqa: PLW0603 - what forked ranks find
    shell = running_shell()
    kernel = getattr(shell, "kernel", None)
    _kernels = shell, kernel, answers_questions(kernel)
    if kernel is not None:
        from nbstate.rank import comms, display

        comms.prepare()
        display.publisher_for(shell)


def prepare_template() -> None:
    """Make in the template, once, what fresh ranks of a notebook would each make for themselves."""
    _make_shell()
    importlib.import_module("nbstate.rank.comms")
    importlib.import_module("comm" if importlib.util.find_spec("comm") else "ipykernel.comm")


def install(channel: Channel, marks: int, surroundings: Surroundings | None) -> None:
    """Replace what was the kernel's in a rank that has just begun.

    Parameters
    ----------
    channel
        Takes the messages; not listening yet.
    marks
        Descriptor of the standard output's pipe, for marks.
    surroundings
        What a fresh process was told of the kernel's; a forked one has them.
    """
    if surroundings is None:
        shell, kernel, asks = _kernels
        in_notebook = kernel is not None
    else:
        in_notebook, asks = surroundings.notebook, surroundings.asks
        shell, kernel = (running_shell() or _make_shell()) if in_notebook else None, None
    stdin.install(channel, kernel, debugs=asks or not in_notebook)
    if not in_notebook:
        return  # a terminal: what is displayed there is text already
    from nbstate.rank import comms, display

    # Hooks of the shell run around cells and widget callbacks; a rank has neither of its own.
    shell.events.callbacks["pre_execute"].clear()
    shell.events.callbacks["post_execute"].clear()
    display.install(channel, marks, shell)
    comms.install(channel, forked=kernel is not None)


def _make_shell() -> Any:
    # Things are displayed by it. It is of the notebook's own class: libraries look for its name,
    # or its module, to know where they are.
    from ipykernel.zmqshell import ZMQInteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.IPKernelApp = Config()  # and for this, where they would use widgets
    for name in ("tqdm.auto", "tqdm.autonotebook"):
        sys.modules.pop(name, None)  # torch has imported them, when nothing said so
    shell = ZMQInteractiveShell.instance(config=config, user_module=sys.modules["__main__"])
    builtins.get_ipython = shell.get_ipython  # type: ignore[attr-defined] # as while a cell runs
    _use_the_notebooks_debugger()
    return shell


def _use_the_notebooks_debugger() -> None:
    # As ipykernel does when a kernel starts.
    import pdb  # noqa: T100 - nobody stops here

    from IPython.core import debugger

    pdb.Pdb = debugger.InterruptiblePdb  # type: ignore[misc,assignment]
    pdb.set_trace = debugger.set_trace


def finish() -> None:
    """The function is over: send what it measured last, show the figures that it left open."""
    if "nbstate.metrics" in sys.modules:
        sys.modules["nbstate.metrics"].flush()
    if "nbstate.rank.timing" in sys.modules:
        sys.modules["nbstate.rank.timing"].flush()
    if "nbstate.rank.display" not in sys.modules:
        return
    try:
        sys.modules["nbstate.rank.display"].show_open_figures()
    except Exception:  # a figure that cannot be drawn must not cost the result
        traceback.print_exc()
