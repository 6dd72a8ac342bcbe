from __future__ import annotations

import pytest

from nbstate.environment import (
    FRONT_ENDS,
    FrontEnd,
    Surroundings,
    choose_view,
    front_end,
    recognise,
)

LIVE = {"kernel": True, "asks": True, "shell": True}


@pytest.mark.parametrize(
    ("here", "name", "view"),
    [
        (Surroundings(), "plain Python", "plain"),
        (Surroundings(shell=True), "terminal IPython", "plain"),
        (Surroundings(kernel=True, shell=True), "headless", "plain"),
        (
            Surroundings(kernel=True, shell=True, variables={"KAGGLE_KERNEL_RUN_TYPE": "Batch"}),
            "headless",
            "plain",
        ),
        (
            Surroundings(**LIVE, client="python /usr/bin/jupyter-console"),
            "Jupyter console",
            "plain",
        ),
        (Surroundings(**LIVE, client="/opt/bin/jupyter-qtconsole"), "Qt console", "plain"),
        (Surroundings(**LIVE, client="python -m spyder_kernels"), "Spyder", "plain"),
        (Surroundings(**LIVE, colab=True), "Colab", "board"),
        (Surroundings(**LIVE, variables={"COLAB_RELEASE_TAG": "release-colab"}), "Colab", "board"),
        (
            Surroundings(**LIVE, variables={"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}),
            "Kaggle",
            "board",
        ),
        (Surroundings(**LIVE, variables={"VSCODE_PID": "12"}), "VS Code", "board"),
        (
            Surroundings(**LIVE, variables={"JPY_SESSION_NAME": "/a.ipynb"}),
            "JupyterLab or Notebook",
            "board",
        ),
        (Surroundings(**LIVE), "notebook", "board"),
        (Surroundings(**LIVE, widgets=False), "notebook", "plain"),
    ],
)
def test_every_front_end_is_recognised(here: Surroundings, name: str, view: str) -> None:
    assert recognise(here) == FrontEnd(name, view)


def test_every_row_of_the_table_is_tried_above() -> None:
    tried = {
        mark.args[1][i][1]
        for mark in test_every_front_end_is_recognised.pytestmark  # type: ignore[attr-defined]
        for i in range(len(mark.args[1]))
    }
    assert tried == {name for name, _, _ in FRONT_ENDS}


def test_here_it_is_plain_python() -> None:
    assert front_end() == FrontEnd("plain Python", "plain")


@pytest.mark.parametrize(
    ("asked", "variable", "chosen"),
    [
        ("auto", "", "plain"),
        ("auto", "silent", "silent"),
        ("silent", "plain", "silent"),
        ("auto", "auto", "plain"),
        ("board", "", "plain"),  # no notebook here
        ("auto", "board", "plain"),
    ],
)
def test_the_view_is_chosen_by_argument_then_variable_then_front_end(
    asked: str, variable: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBSTATE_VIEW", variable)
    assert choose_view(asked) == chosen


def test_a_wrong_variable_is_named_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBSTATE_VIEW", "fancy")
    with pytest.raises(ValueError, match="NBSTATE_VIEW='fancy': choose one of 'auto', 'board'"):
        choose_view("auto")
