"""Which front end this is, and what it can show.

`FRONT_ENDS` is the whole knowledge: the first row whose test holds says the name and the view. The
tests read nothing but `Surroundings`, so that every row can be tried without the front end.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VIEW_VARIABLE = "NBSTATE_VIEW"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What can be known about the front end from inside the process.

    Parameters
    ----------
    kernel
        A Jupyter kernel runs in this process.
    asks
        The front end of the running cell answers questions (`input()`): somebody sits there.
        nbconvert, papermill, nbclient and nbval never do.
    shell
        An IPython shell of any kind runs in this process.
    client
        Command line of the program that started the process, '' where unknown.
    variables
        Environment variables.
    colab
        Google Colab's own package is loaded.
    widgets
        ipywidgets can be imported.
    """

    kernel: bool = False
    asks: bool = False
    shell: bool = False
    client: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    colab: bool = False
    widgets: bool = True


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A front end's name and the view that suits it, 'board' or 'plain'."""

    name: str
    view: str


FRONT_ENDS: tuple[tuple[str, Callable[[Surroundings], bool], str], ...] = (
    ("terminal IPython", lambda here: here.shell and not here.kernel, "plain"),
    ("plain Python", lambda here: not here.kernel, "plain"),
    ("headless", lambda here: not here.asks, "plain"),
    ("Jupyter console", lambda here: "jupyter-console" in here.client, "plain"),
    ("Qt console", lambda here: "qtconsole" in here.client, "plain"),
    ("Spyder", lambda here: "SPY_TESTING" in here.variables or "spyder" in here.client, "plain"),
    ("Colab", lambda here: here.colab or "COLAB_RELEASE_TAG" in here.variables, "board"),
    ("Kaggle", lambda here: "KAGGLE_KERNEL_RUN_TYPE" in here.variables, "board"),
    ("VS Code", lambda here: "VSCODE_PID" in here.variables, "board"),
    ("JupyterLab or Notebook", lambda here: "JPY_SESSION_NAME" in here.variables, "board"),
    ("notebook", lambda here: here.kernel, "board"),
)
"""Name, test and view of every front end, the most certain signs first."""


def recognise(here: Surroundings) -> FrontEnd:
    """Return the front end that `here` speaks of, with plain text where widgets are missing."""
    name, view = next((name, view) for name, holds, view in FRONT_ENDS if holds(here))
    return FrontEnd(name, view if here.widgets else "plain")


def front_end() -> FrontEnd:
    """Return the front end of the cell that runs now.

    Examples
    --------
    >>> front_end().name
    '...'
    """
    return recognise(look_around())


def choose_view(kind: str) -> str:
    """Return 'board', 'plain' or 'silent' for a view that may be 'auto'.

    The environment variable ``NBSTATE_VIEW`` decides an 'auto'. A board without ipywidgets is
    plain.

    Raises
    ------
    ValueError
        The variable holds something else.
    """
    if kind == "auto":
        kind = os.environ.get(VIEW_VARIABLE, "") or "auto"
        if kind not in ("auto", "board", "plain", "silent"):
            raise ValueError(
                f"{VIEW_VARIABLE}={kind!r}: choose one of 'auto', 'board', 'plain', 'silent'"
            )
    if kind == "auto":
        return front_end().view
    if kind == "board" and (running_kernel() is None or not _installed("ipywidgets")):
        return "plain"
    return kind


def look_around() -> Surroundings:
    """Gather what can be known here, without importing IPython or ipywidgets."""
    kernel = running_kernel()
    return Surroundings(
        kernel=kernel is not None,
        asks=answers_questions(kernel),
        shell=running_shell() is not None,
        client=_command_of(os.getppid()) if kernel is not None else "",
        variables=os.environ,
        colab="google.colab" in sys.modules,
        widgets=_installed("ipywidgets"),
    )


def running_kernel() -> Any:
    """Return ipykernel's kernel of this process, or None."""
    return getattr(running_shell(), "kernel", None)


def answers_questions(kernel: Any) -> bool:
    """Tell whether the front end of the running cell can answer `input()`."""
    return bool(getattr(kernel, "_allow_stdin", False))


def running_shell() -> Any:
    """Return IPython's shell of this process, or None."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _installed(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


@functools.cache
def _command_of(pid: int) -> str:
    import psutil

    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""
