"""Widgets made in a rank: seen on the page, live both ways, kept as text at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nbstate.relay.widgets import Widgets, describe
from nbstate.wire import CommMessage
from tests.kernels import Kernel
from tests.view.hand import HandRank
from tests.view.models import WIDGET, Models, change, click, tell
from tests.view.starts import FORKED, STARTS, launching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kernels import Cell

SETUP = """
import os, time
import ipywidgets as widgets
from IPython.display import display
from tqdm.auto import tqdm
from nbstate import launch, notebook_launcher
"""


@pytest.fixture(scope="module", params=STARTS)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel"), allow_stdin=True) as kernel:
        kernel.run(SETUP + launching(request.param))
        yield kernel


def all_closed(kernel: Kernel) -> bool:
    """Tell whether the page has been told to drop every widget that it had."""
    models = Models(*kernel.cells.values())  # older kernels say so for the cell that runs now
    return models.closed >= set(models.states)


@pytest.fixture
def sliders(watched: Kernel) -> Iterator[Cell]:
    """A background job whose two ranks show a slider and a button until the slider is at 7."""
    cell = watched.run("""
        def train():
            slider = widgets.IntSlider(description="speed")
            slider.observe(lambda change: print("slider at", change["new"]), "value")
            button = widgets.Button(description="press")
            button.on_click(lambda _: print("pressed in", os.environ["RANK"]))
            display(slider, button)
            while slider.value != 7:
                time.sleep(0.01)
            return slider.value
        job = launch(train, num_processes=2)
    """)
    watched.read_until(lambda: len(Models(cell).named("ButtonModel")) == 2)
    yield cell
    watched.run("job.stop()")
    watched.read_until(lambda: all_closed(watched))


def test_a_slider_and_a_button_reach_their_rank(watched: Kernel, sliders: Cell) -> None:
    models = Models(sliders)
    click(watched, models.named("ButtonModel")[1], {"event": "click"})
    for slider in models.named("IntSliderModel"):
        change(watched, slider, value=7)
    assert watched.run("list(job.wait())").result == "[7, 7]"
    watched.read_until(lambda: WIDGET not in sliders.displays[0])
    html = sliders.displays[0]["text/html"]
    assert html.count("slider at 7") == 2
    assert html.count("pressed in") == 1
    assert html.count("speed: 7") == 2
    watched.read_until(lambda: all_closed(watched))


def test_a_reloaded_page_finds_the_widgets(watched: Kernel, sliders: Cell) -> None:
    slider = Models(sliders).named("IntSliderModel")[0]
    known = "get_ipython().kernel.comm_manager.comms"
    assert watched.eval(f"{known}['{slider}'].target_name") == "jupyter.widget"
    tell(watched, slider, {"method": "request_state"})

    def answers() -> list[dict[str, Any]]:
        told = [m for m in sliders.contents("comm_msg") if m["comm_id"] == slider]
        return [s for m in told if "_model_name" in (s := m["data"].get("state", {}))]

    watched.read_until(lambda: bool(answers()))
    assert answers()[0]["description"] == "speed"
    told = watched.eval(
        f"widgets.Widget.get_manager_state()['state']['{slider}']['state']['description']"
    )
    assert told == "speed"


def test_after_a_run_the_kernel_knows_no_more_widgets(watched: Kernel) -> None:
    count = "[len(get_ipython().kernel.comm_manager.comms), len(widgets.Widget.widgets)]"
    before = watched.eval(count)
    cell = watched.run("""
        def train():
            for _ in tqdm(range(10)):
                time.sleep(0.05)
        notebook_launcher(train, num_processes=2);
    """)
    assert Models(cell).named("FloatProgressModel")
    assert watched.eval(count) == before


def test_a_bar_moves_and_its_last_line_stands_on_the_page(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            for _ in tqdm(range(10), desc="epoch"):
                time.sleep(0.1)
        notebook_launcher(train, num_processes=2);
    """)
    values = [
        message["data"]["state"]["value"]
        for message in cell.contents("comm_msg")
        if message["comm_id"] in Models(cell).named("FloatProgressModel")
        and "value" in message["data"].get("state", {})
    ]
    assert max(values) == 10
    assert len(set(values)) > 2
    assert cell.displays[0]["text/html"].count("epoch: 100%|██████████| 10/10 [") == 2


def test_a_bar_that_is_not_left_is_gone(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            for epoch in tqdm(range(30), desc="epoch"):
                for _ in tqdm(range(3), desc="step", leave=False):
                    time.sleep(0.01)
        notebook_launcher(train, num_processes=2);
    """)
    html = cell.displays[0]["text/html"]
    assert html.count("epoch: 100%|██████████| 30/30 [") == 2
    assert "step" not in html
    changes = Models(cell).changes()
    for rank in (0, 1):
        drawn = [change[2] for change in changes if change[:2] == [rank, "draw"]]
        gone = [change[2] for change in changes if change[:2] == [rank, "drop"]]
        assert set(drawn) - set(gone) == {drawn[0]}


def test_output_widgets_take_what_is_printed_in_them(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            out = widgets.Output()
            display(out)
            with out:
                print("inside")
                display("drawn inside")
            print("outside")
            with out:
                print("more")
                out.clear_output(wait=True)
                print("only this")
            time.sleep(1)
            with out:
                1 / 0
            return "went on"
        print(notebook_launcher(train, num_processes=1, isolate=True)[0])
    """)
    assert cell.stdout == "went on\n"
    html = cell.displays[0]["text/html"]
    assert "outside" in html
    assert "only this" in html
    assert "ZeroDivisionError" in html
    assert "inside" not in html
    models = Models(cell)
    assert not any(state.get("msg_id") for state in models.states.values())


def test_interact_draws_in_its_output(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            widgets.interact(lambda x: print("x is", x), x=3)
            time.sleep(1)
        notebook_launcher(train, num_processes=2);
    """)
    assert cell.displays[0]["text/html"].count("x is 3") == 2


@FORKED
def test_a_widget_of_the_kernel_survives_its_copies_in_ranks(watched: Kernel) -> None:
    watched.run("mine = widgets.IntSlider(value=1)")
    cell = watched.run("""
        import gc
        def train():
            global mine
            del mine
            gc.collect()
        notebook_launcher(train, num_processes=2);
    """)
    assert watched.eval("mine.comm is not None")
    mine = watched.eval("mine.model_id")
    assert mine not in Models(cell).closed


@FORKED
def test_a_widget_of_the_kernel_can_be_moved_by_a_rank(watched: Kernel) -> None:
    watched.run("shared = widgets.IntProgress()")
    cell = watched.run("""
        def train():
            shared.value = 50
        notebook_launcher(train, num_processes=1, isolate=True);
    """)
    moved = Models(cell).states[watched.eval("shared.model_id")]
    assert moved["value"] == 50


@pytest.mark.parametrize("start_method", STARTS)
def test_a_headless_run_tells_the_last_state_of_a_bar(
    shared_kernel: Kernel, start_method: str
) -> None:
    shared_kernel.run(SETUP)
    cell = shared_kernel.run(f"""
        from tqdm.notebook import tqdm
        def train():
            for _ in tqdm(range(4), bar_format="{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}}"):
                pass
        notebook_launcher(train, num_processes=2, start_method={start_method!r});
    """)
    assert "[0-1] 100%|██████████| 4/4\n" in cell.stdout
    assert cell.contents("comm_open") == []


# -- the mirror itself


def opened(comm_id: str, **state: object) -> CommMessage:
    content = {"comm_id": comm_id, "target_name": "jupyter.widget", "data": {"state": state}}
    return CommMessage("comm_open", content, {})


def test_the_mirror_keeps_binary_parts(tmp_path: object) -> None:
    widgets = Widgets(lambda rank, message: None, None)
    rank = HandRank(0, None)  # type: ignore[arg-type]
    content = {
        "comm_id": "a",
        "target_name": "jupyter.widget",
        "data": {
            "state": {"name": "x", "parts": [{"raw": None}]},
            "buffer_paths": [["parts", 0, "raw"]],
        },
    }
    widgets.take(rank, CommMessage("comm_open", content, {}, (b"bytes",)))
    assert widgets.state("a") == {"name": "x", "parts": [{"raw": b"bytes"}]}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"_model_name": "IntSliderModel", "description": "speed", "value": 3}, "speed: 3"),
        ({"_model_name": "TextModel", "value": "words"}, "words"),
        ({"_model_name": "LabelModel", "value": "a <b> & c"}, "a  & c"),
        ({"_model_name": "HTMLModel", "value": "<b>bold</b> &lt;1&gt;"}, "bold <1>"),
        ({"_model_name": "ButtonModel", "description": "press"}, "[press]"),
        ({"_model_name": "IntProgressModel", "value": 5, "max": 10}, "|█████     |"),
        ({"_model_name": "IntProgressModel", "value": 5, "max": 5, "min": 5}, "|          |"),
        ({"_model_name": "FloatProgressModel", "value": None, "max": None}, "|          |"),
        ({"_model_name": "ImageModel", "value": b"png"}, "Image"),
        ({"_model_name": "DropdownModel", "index": 2}, "2"),
        (
            {"_model_name": "OutputModel", "outputs": [{"output_type": "stream", "text": "t\n"}]},
            "t",
        ),
        ({}, ""),
    ],
)
def test_every_widget_is_told_as_text(state: dict[str, object], text: str) -> None:
    assert describe("a", {"a": state}) == text
