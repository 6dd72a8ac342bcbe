"""Sessions and the inspector in a real page: cells on ranks, the stop button, a live table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.browser.driver import Page

    MakeNotebook = Callable[[Sequence[str]], Page]

SETUP = """\
%load_ext nbstate
import pathlib, time
import nbstate
gate = pathlib.Path({gate!r})
def wait_for_gate():
    while not gate.exists():
        time.sleep(0.01)
session = nbstate.Session(2)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that the ranks wait for."""
    return tmp_path / "gate"


@pytest.fixture
def setup(gate: Path) -> str:
    return SETUP.format(gate=str(gate))


def test_a_cell_on_ranks_shows_text_a_figure_and_a_widget_that_is_alive(
    notebook: MakeNotebook, setup: str
) -> None:
    page = notebook(
        [
            setup,
            """\
%%ranks
%matplotlib inline
import ipywidgets
import matplotlib.pyplot as plt
print("the same on both")
plt.figure(figsize=(2, 1))
plt.plot([0, rank])
plt.show()
label = ipywidgets.Label("not pressed")
def pressed(_):
    label.value = f"pressed on rank {rank}"
press = ipywidgets.Button(description=f"press {rank}")
press.on_click(pressed)
ipywidgets.HBox([press, label])
""",
            "%%ranks\nlabel.value",
        ]
    )
    page.finish(1)
    page.wait_until(lambda: page.output(1).locator("img").count() == 2)
    page.wait_until(lambda: page.button(1, "press 1").count() == 1)
    assert page.text(1).count("the same on both") == 2
    page.button(1, "press 1").click()
    page.wait_until(lambda: "pressed on rank 1" in page.text(1))
    assert page.text(1).count("not pressed") == 1
    page.screenshot("session", 1)
    page.finish(2)
    page.wait_until(lambda: "[1] 'pressed on rank 1'" in page.text(2))
    assert "[0] 'not pressed'" in page.text(2)


def test_output_before_a_failure_stays_and_run_all_stops(
    notebook: MakeNotebook, setup: str
) -> None:
    page = notebook(
        [setup, "%%ranks\nprint('before')\nif rank:\n    1 / 0", "print('never')", "print('kept')"]
    )
    page.command("notebook:run-all-cells")
    page.wait_until(lambda: "ZeroDivisionError" in page.text(1))
    page.finish(3)
    assert "[0-1] before" in page.text(1)
    assert "rank 1 of 2: ZeroDivisionError: division by zero" in page.text(1)
    assert f"Cell In[{page.count(1)}], line 4" in page.text(1)
    assert page.text(2) == ""
    page.screenshot("session-error", 1)


def test_the_stop_button_keeps_the_session(notebook: MakeNotebook, setup: str) -> None:
    page = notebook(
        [
            setup,
            "%%ranks\nkept = rank + 100",
            "%%ranks\nprint('up')\ntime.sleep(600)",
            "%%ranks\nkept",
        ]
    )
    page.finish(1)
    page.run(2)
    page.wait_until(lambda: page.text(2).count("up") == 2)
    page.tab.locator("[data-command='notebook:interrupt-kernel']").first.click()
    page.wait_until(lambda: not page.running(2))
    page.wait_until(lambda: "interrupted; the ranks keep their variables" in page.text(2))
    assert f"rank 1: was at Cell In[{page.count(2)}], line 3" in page.text(2)
    page.screenshot("session-interrupted", 2)
    page.finish(3)
    assert page.text(3).split("\n")[:2] == ["[0] 100", "[1] 101"]


def columns(page: Page, cell: int) -> dict[str, list[str]]:
    """Return the columns of the inspector's first table, by their heading."""
    table: list[list[str]] = (
        page.output(cell)
        .locator("table")
        .first.evaluate(
            "table => [...table.rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        )
    )
    return {name: [row[i] for row in table[1:]] for i, name in enumerate(table[0])}


def test_the_inspector_is_live_and_then_stays(
    notebook: MakeNotebook, setup: str, gate: Path
) -> None:
    page = notebook(
        [
            setup,
            "nbstate.inspect(session)",
            """\
%%ranks
state = nbstate.PartialState()
for step in range(5):
    nbstate.log(loss=(rank + 1) / (step + 1), step=step)
wait_for_gate()
""",
            "session.close()",
            "len(nbstate.inspect(session)._places)",
        ]
    )
    page.finish(1)
    page.finish(1)  # once more: what it showed before is gone
    page.finish(4)
    assert page.text(4).split()[-1] == "1"
    assert columns(page, 1)["doing"] == ["idle", "idle"]

    def shown(name: str) -> Any:
        return columns(page, 1).get(name)

    page.run(2)
    page.wait_until(lambda: shown("loss") == ["0.2", "0.4"])
    page.wait_until(lambda: all("time.sleep" in where for where in shown("doing")))
    assert shown("step") == ["4", "4"]
    assert all(re.fullmatch(r"[\d.]+ [KMG]iB", size) for size in shown("memory"))
    page.wait_until(lambda: "Num processes" in page.text(1))
    pictures = page.output(1).locator("table").first.locator("img")
    assert pictures.count() == 4
    assert all(pictures.nth(i).evaluate("image => image.naturalWidth > 0") for i in range(4))
    page.screenshot("inspector", 1)
    gate.touch()
    page.wait_until(lambda: not page.running(2))
    page.wait_until(lambda: shown("doing") == ["idle", "idle"])
    page.finish(3)
    page.wait_until(lambda: shown("doing") == ["done", "done"])
    page.save()
    page.reload()
    assert shown("loss") == ["0.2", "0.4"]
    assert shown("doing") == ["done", "done"]
