"""The board in a real page: text, drawings, widgets, prompts, buttons, and what stays."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.driver import Browser, Page, Server
from tests.view.starts import STARTS, launching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    MakeNotebook = Callable[[Sequence[str]], Page]

SETUP = """\
import os, pathlib, sys, time
import nbstate
from nbstate import launch, notebook_launcher
gate = pathlib.Path({gate!r})
def wait_for_gate():
    while not gate.exists():
        time.sleep(0.01)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that the ranks wait for."""
    return tmp_path / "gate"


@pytest.fixture
def setup(gate: Path) -> str:
    return SETUP.format(gate=str(gate))


def done(page: Page, cell: int) -> bool:
    """Tell whether the static page stands in a cell."""
    return not page.running(cell) and "Stop" not in page.text(cell) and "rank 0" in page.text(cell)


def test_panes_show_colours_bars_and_nothing_but_characters(
    notebook: MakeNotebook, setup: str, gate: Path
) -> None:
    page = notebook(
        [
            setup,
            r"""
def train():
    rank = os.environ["RANK"]
    print(f"\x1b[31mred {rank}\x1b[0m plain")
    print("<script>document.title = 'hacked'</script></pre>")
    for i in range(101):
        sys.stderr.write(f"\r{i:3}% of rank {rank}")
    sys.stderr.write("\n\rinner bar\x1b[A\r100% and up")
    wait_for_gate()
    print("the end")
notebook_launcher(train, num_processes=2)
""",
        ]
    )
    page.run(1)
    page.wait_until(lambda: "inner bar" in page.pane(1, "rank 1"))
    pane = page.output(1).get_by_role("log", name="rank 1", exact=True)
    red = pane.locator("span", has_text="red 1").first
    assert red.evaluate("node => getComputedStyle(node).color") == "rgb(231, 92, 88)"
    assert page.pane(1, "rank 1").splitlines() == [
        "red 1 plain",
        "<script>document.title = 'hacked'</script></pre>",
        "100% and upk 1",  # as in a terminal: what is not overwritten stays
        "inner bar",
    ]
    assert page.js("() => document.title") != "hacked"
    page.output(1).get_by_role("tab", name="All").click()
    page.wait_until(lambda: "[0] red 0 plain" in page.pane(1, "all ranks"))
    assert "[1] red 1 plain" in page.pane(1, "all ranks")
    gate.touch()
    page.wait_until(lambda: done(page, 1))
    assert "the end" in page.text(1)
    assert "<script>document.title = 'hacked'</script></pre>" in page.text(1)
    assert page.js("() => document.title") != "hacked"


def test_many_ranks_are_tabs_that_keys_reach(
    notebook: MakeNotebook, setup: str, gate: Path
) -> None:
    page = notebook(
        [
            setup,
            """
def train():
    print("I am", os.environ["RANK"])
    wait_for_gate()
notebook_launcher(train, num_processes=5)
""",
        ]
    )
    page.run(1)
    page.wait_until(lambda: "[4] I am 4" in page.text(1))
    tabs = page.output(1).get_by_role("tab")
    assert tabs.count() == 6
    page.wait_until(lambda: re.fullmatch(r"rank 4\s+▸ running.*", tabs.nth(5).inner_text()))
    tabs.first.focus()
    page.tab.keyboard.press("ArrowLeft")
    page.wait_until(lambda: "I am 4" in page.pane(1, "rank 4"))
    assert tabs.nth(5).get_attribute("aria-selected") == "true"
    gate.touch()
    page.wait_until(lambda: done(page, 1))


def test_a_flood_leaves_the_page_alive(notebook: MakeNotebook, setup: str, gate: Path) -> None:
    page = notebook(
        [
            setup,
            """
def train():
    for i in range(100_000):
        print("line", i, "x" * 60)
    print("last line")
    wait_for_gate()
notebook_launcher(train, num_processes=2)
""",
        ]
    )
    page.run(1)
    page.wait_until(lambda: "last line" in page.pane(1, "rank 1"))
    rows = page.js("() => document.querySelectorAll('.nbs-row').length")
    assert rows < 200
    gate.touch()
    page.wait_until(lambda: done(page, 1))
    assert "lines before these only in /" in page.text(1)


@pytest.mark.parametrize("start_method", STARTS)
def test_drawings_stand_in_their_pane_and_change_in_place(
    notebook: MakeNotebook, setup: str, gate: Path, start_method: str
) -> None:
    page = notebook(
        [
            setup
            + launching(start_method)
            + "from IPython.display import HTML, display\nimport matplotlib.pyplot as plt",
            """
def train():
    rank = os.environ["RANK"]
    print("before")
    handle = display(HTML(f"<b>0% of {rank}</b>"), display_id=True)
    print("between")
    plt.figure(figsize=(2, 1)); plt.plot([1, 2]); plt.show()
    print("after")
    handle.update(HTML(f"<b>100% of {rank}</b>"))
    wait_for_gate()
notebook_launcher(train, num_processes=2)
""",
        ]
    )
    page.run(1)
    for rank in (0, 1):
        page.wait_until(lambda rank=rank: f"100% of {rank}" in page.pane(1, f"rank {rank}"))
    pane = page.output(1).get_by_role("log", name="rank 0", exact=True)
    page.wait_until(lambda: pane.locator("img").count() == 1)
    assert "100% of 1" not in page.pane(1, "rank 0")
    order = pane.evaluate(
        "node => [...node.querySelectorAll('.nbs-text, .nbs-drawing')]"
        ".map(part => part.querySelector('img') ? 'figure' : part.innerText.trim())"
    )
    assert [part for part in order if part] == [
        "before",
        "100% of 0",
        "between",
        "figure",
        "after",
    ]
    gate.touch()
    page.wait_until(lambda: done(page, 1))
    assert page.output(1).locator("img").count() == 2


def test_a_training_run_is_followed(notebook: MakeNotebook, setup: str, gate: Path) -> None:
    page = notebook(
        [
            setup + "import matplotlib.pyplot as plt\nimport torch.distributed as dist\n"
            "from IPython.display import display\nfrom nbstate import PartialState\n"
            "from tqdm.auto import tqdm",
            r"""
def train(epochs):
    state = PartialState()
    losses, figure = [], plt.figure(figsize=(3.4, 1.4))
    plt.close(figure)
    shown = display(figure, display_id=True)
    for epoch in tqdm(range(epochs), desc="epoch"):
        losses.append(2.3 / (1 + epoch) + 0.05 * state.process_index)
        figure.clear(); figure.gca().plot(losses)
        shown.update(figure)
        print(f"\x1b[36mepoch {epoch}\x1b[0m  loss {losses[-1]:.3f}")
        time.sleep(0.15)
        if epoch == 6 and state.process_index == 0:
            wait_for_gate()
        dist.barrier()
    return losses[-1]

losses = notebook_launcher(train, (12,), num_processes=2)
""",
        ]
    )
    page.run(1)
    chip = page.output(1).locator(".nbs-chip").nth(1)
    page.wait_until(lambda: chip.count() and "in barrier" in chip.inner_text())
    assert "◌ waiting" in chip.inner_text()
    page.wait_until(lambda: "epoch 6  loss 0.379" in page.pane(1, "rank 1"))
    page.screenshot("run", 1)
    gate.touch()
    page.wait_until(lambda: done(page, 1))
    assert page.text(1).count("epoch: 100%|██████████| 12/12") == 2
    assert page.output(1).locator("img").count() == 2


@pytest.mark.parametrize("start_method", STARTS)
def test_widgets_are_live_both_ways(notebook: MakeNotebook, setup: str, start_method: str) -> None:
    page = notebook(
        [
            setup
            + launching(start_method)
            + "import ipywidgets as widgets\nfrom IPython.display import display\n"
            "from tqdm.auto import tqdm",
            """
def train():
    for _ in tqdm(range(10), desc="epoch"):
        time.sleep(0.02)
    number = widgets.BoundedIntText(description="number")
    number.observe(lambda change: print("number is", change["new"]), "value")
    display(number)
    while number.value != 7:
        time.sleep(0.01)
    return number.value
notebook_launcher(train, num_processes=2)
""",
        ]
    )
    page.run(1)
    fields = page.output(1).locator("input[type=number]")
    page.wait_until(lambda: fields.count() == 2)
    for i in range(2):
        fields.nth(i).fill("7")
        fields.nth(i).press("Enter")
    page.wait_until(lambda: done(page, 1))
    text = page.text(1)
    assert text.count("number is 7") == 2
    assert text.count("epoch: 100%|██████████| 10/10") == 2
    assert "RankResults([7, 7])" in text


def test_bars_that_are_not_left_leave_nothing(
    notebook: MakeNotebook, setup: str, gate: Path
) -> None:
    page = notebook(
        [
            setup + "from tqdm.auto import tqdm",
            """
def train():
    for epoch in tqdm(range(25), desc="epoch"):
        for _ in tqdm(range(3), desc="step", leave=False):
            time.sleep(0.01)
    print("all bars are full")
    wait_for_gate()
notebook_launcher(train, num_processes=2)
""",
        ]
    )
    page.run(1)
    for rank in ("rank 0", "rank 1"):
        page.wait_until(lambda rank=rank: "all bars are full" in page.pane(1, rank))
        page.wait_until(lambda rank=rank: "25/25" in page.pane(1, rank))
        for left in ("step", "Loading widget", "Error displaying widget"):
            page.wait_until(lambda rank=rank, left=left: left not in page.pane(1, rank))
    gate.touch()
    page.wait_until(lambda: done(page, 1))
    assert page.text(1).count("epoch: 100%|██████████| 25/25") == 2
    assert "step" not in page.text(1)


def test_questions_open_the_notebooks_prompt(notebook: MakeNotebook, setup: str) -> None:
    page = notebook([setup, "notebook_launcher(lambda: input('name? '), num_processes=2)"])
    page.run(1)
    field = page.cell(1).locator(".jp-Stdin-input").last
    prompt = page.cell(1).locator(".jp-Stdin-prompt").last
    asked: list[str] = []
    for answer in ("first", "second"):
        page.wait_until(lambda: field.is_visible() and prompt.inner_text() not in asked)
        asked.append(prompt.inner_text())
        field.fill(answer)
        field.press("Enter")
    page.wait_until(lambda: done(page, 1))
    assert sorted(text.strip() for text in asked) == ["rank 0 name?", "rank 1 name?"]
    assert re.search(r"RankResults\(\['(first', 'second|second', 'first)'\]\)", page.text(1))


def test_a_saved_notebook_shows_all_of_it_without_a_kernel(
    notebook: MakeNotebook, setup: str, server: Server, browser: Browser, tmp_path: Path
) -> None:
    page = notebook(
        [
            setup + "import matplotlib.pyplot as plt\nimport ipywidgets as widgets\n"
            "from IPython.display import display",
            """
def train():
    print("text of a rank")
    plt.plot([1, 2]); plt.show()
    display(widgets.IntSlider(value=3, description="speed"))
    time.sleep(1)
notebook_launcher(train, num_processes=2)
""",
        ]
    )
    page.finish(1)
    page.wait_until(lambda: done(page, 1))
    page.save()
    saved = server.read(page.name)
    assert "widgets" not in saved.metadata
    (output,) = [o for o in saved.cells[1].outputs if "text/html" in o.get("data", {})]
    assert output.data.keys() == {"text/html", "text/plain"}
    # A machine that has never seen this notebook, and does not trust it.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "saved.ipynb").write_text((server.folder / page.name).read_text())
        with Server(Path(folder)) as other:
            stranger = browser.open("saved.ipynb", other)
            for seen in ("text of a rank", "speed: 3", "rank 1"):
                assert seen in stranger.text(1)
            assert stranger.output(1).locator("img").count() == 2
            assert "Error displaying widget" not in stranger.all_text()
            stranger.close()


def test_a_background_job_leaves_the_kernel_free_and_survives_a_reload(
    notebook: MakeNotebook, setup: str, gate: Path
) -> None:
    page = notebook(
        [
            setup + "import ipywidgets as widgets\nfrom IPython.display import display",
            """
def train():
    print("early line")
    number = widgets.BoundedIntText(description="number")
    number.observe(lambda change: print("number is", change["new"]), "value")
    display(number)
    wait_for_gate()
    print("late line")
job = launch(train, num_processes=2)
""",
            "6 * 7",
            "job",
            "job.wait(); nbstate.last_run()",
        ]
    )
    page.finish(1)
    page.finish(2)
    assert page.text(2).endswith("42")
    page.finish(3)
    for cell in (1, 3):
        page.wait_until(lambda cell=cell: "early line" in page.pane(cell, "rank 1"))
    page.save()
    page.reload()
    for cell in (1, 3):
        page.wait_until(lambda cell=cell: page.button(cell, "Stop").count() == 1)
        page.wait_until(lambda cell=cell: "early line" in page.pane(cell, "rank 1"))
    fields = page.output(1).locator("input[type=number]")
    page.wait_until(lambda: fields.count() == 2)
    fields.nth(1).fill("7")
    fields.nth(1).press("Enter")
    page.wait_until(lambda: "number is 7" in page.pane(1, "rank 1"))
    gate.touch()
    page.finish(4)
    for cell in (1, 3, 4):
        page.wait_until(lambda cell=cell: "late line" in page.text(cell))
        assert "✓ done" in page.text(cell)
    assert "Error displaying widget" not in page.all_text()


def test_both_views_become_the_page(notebook: MakeNotebook, setup: str, gate: Path) -> None:
    page = notebook([setup, "job = launch(wait_for_gate, num_processes=2)", "job"])
    page.finish(1)
    page.finish(2)
    for cell in (1, 2):
        page.wait_until(lambda cell=cell: page.button(cell, "Stop").count() == 1)
    gate.touch()
    for cell in (1, 2):
        page.wait_until(lambda cell=cell: done(page, cell))


def test_the_buttons_work_while_the_cell_blocks(notebook: MakeNotebook, setup: str) -> None:
    page = notebook([setup, "notebook_launcher(wait_for_gate, num_processes=2)"])
    page.run(1)
    page.wait_until(lambda: page.button(1, "Stop").count() == 1)
    page.button(1, "Where is everyone?").click()
    page.wait_until(lambda: "in wait_for_gate: time.sleep(0.01)" in page.text(1))
    page.button(1, "Stop").click()
    page.wait_until(lambda: done(page, 1))
    assert "■ stopped" in page.text(1)


def test_the_square_stops_a_blocking_run(notebook: MakeNotebook, setup: str) -> None:
    page = notebook([setup, "notebook_launcher(wait_for_gate, num_processes=2)"])
    page.run(1)
    page.wait_until(lambda: page.button(1, "Stop").count() == 1)
    page.command("notebook:interrupt-kernel")
    page.wait_until(lambda: done(page, 1))
    assert "KeyboardInterrupt" in page.text(1)


def test_a_failure_reads_well(notebook: MakeNotebook, setup: str) -> None:
    page = notebook(
        [
            setup,
            """
def train():
    rank = int(os.environ["RANK"])
    print("epoch 1 on rank", rank)
    if rank == 1:
        raise ValueError("the loss is not a number")
    wait_for_gate()
notebook_launcher(train, num_processes=2)
""",
        ]
    )
    page.finish(1)
    page.wait_until(lambda: done(page, 1))
    text = page.text(1)
    assert "✗ failed" in text
    assert "rank 1 of 2: ValueError: the loss is not a number" in text
    page.screenshot("error", 1)


def test_a_rank_that_says_nothing_shows_the_time(
    notebook: MakeNotebook, setup: str, gate: Path
) -> None:
    page = notebook([setup, "notebook_launcher(wait_for_gate, num_processes=2)"])
    page.run(1)
    page.wait_until(lambda: re.search(r"nothing said yet · [2-9] s", page.text(1)))
    gate.touch()
    page.wait_until(lambda: done(page, 1))


def test_without_subshells_stop_goes_through_the_server(
    browser: Browser, setup: str, tmp_path: Path
) -> None:
    plugin = "@jupyterlab/apputils-extension:kernels-settings"
    with Server(tmp_path, {plugin: {"commsOverSubshells": "disabled"}}) as deaf:
        deaf.write("a.ipynb", [setup, "notebook_launcher(wait_for_gate, num_processes=2)"])
        page = browser.open("a.ipynb", deaf)
        page.finish(0)
        page.run(1)
        page.wait_until(lambda: page.button(1, "Stop").count() == 1)
        page.button(1, "Where is everyone?").click()
        page.wait_until(lambda: "answers when that cell ends" in page.text(1))
        page.button(1, "Stop").click()
        page.wait_until(lambda: done(page, 1))
        assert "KeyboardInterrupt" in page.text(1)
        page.close()


def test_where_the_board_cannot_be_loaded_plain_panes_stand_in(
    browser: Browser, setup: str, gate: Path, tmp_path: Path
) -> None:
    with Server(tmp_path, disabled=["anywidget"]) as old:
        cell = """
def train():
    print("<hello>")
    wait_for_gate()
notebook_launcher(train, num_processes=2)
"""
        old.write("a.ipynb", [setup, cell])
        page = browser.open("a.ipynb", old)
        page.finish(0)
        page.run(1)
        page.wait_until(lambda: page.text(1).count("<hello>") == 2)
        gate.touch()
        page.wait_until(lambda: done(page, 1))
        assert page.text(1).count("<hello>") == 2
        page.close()
