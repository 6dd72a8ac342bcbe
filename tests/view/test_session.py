"""What a session's cell shows and leaves, whichever way its ranks began and whatever is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernels import Kernel
from tests.view.models import WIDGET, Models, change
from tests.view.starts import STARTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETUP = """
%load_ext nbstate
import nbstate
session = nbstate.Session(2, start_method={start_method!r})
session.run(lambda: None)
"""

LONG = """%%ranks
import pathlib, time
from IPython.display import HTML, display
print("before")
while not pathlib.Path("gate").exists():
    time.sleep(0.01)
print("after, on", rank)
"""


@pytest.fixture(scope="module", params=STARTS)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel"), allow_stdin=True) as kernel:
        cell = kernel.run(SETUP.format(start_method=request.param))
        assert cell.error is None, cell.error
        yield kernel
        kernel.run("session.close()")


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        cell = kernel.run(SETUP.format(start_method="fork"))
        assert cell.error is None, cell.error
        yield kernel
        kernel.run("session.close()")


def test_a_long_cell_leaves_its_text_and_its_drawing(watched: Kernel) -> None:
    (watched.cwd / "gate").unlink(missing_ok=True)
    cell = watched.start(LONG + "display(HTML('<b>table</b>'))")
    watched.read_until(
        lambda: cell.displays and all("before" in Models(cell).text(rank) for rank in (0, 1))
    )
    assert WIDGET in cell.displays[0]
    (watched.cwd / "gate").touch()
    watched.wait(cell)
    assert not any(WIDGET in bundle for bundle in cell.displays)
    assert [b["text/html"] for b in cell.displays].count("<b>table</b>") == 2
    told = cell.displays[0]["text/plain"] + cell.stdout
    assert told.count("before") == 2
    assert "[1] after, on 1" in told
    models = Models(cell)
    assert models.closed == set(models.states)


def test_a_widget_made_in_a_long_cell_is_alive_after_it(watched: Kernel) -> None:
    cell = watched.run("""%%ranks
import ipywidgets, time
slider = ipywidgets.IntSlider(description=f"rank {rank}")
time.sleep(1)
slider
""")
    assert cell.error is None, cell.error
    shown = [bundle[WIDGET]["model_id"] for bundle in cell.displays if WIDGET in bundle]
    sliders = Models(cell).named("IntSliderModel")
    assert sorted(shown) == sorted(sliders)
    assert len(sliders) == 2
    for slider in sliders:
        change(watched, slider, value=7)
    assert watched.run(
        "%%ranks\nwhile slider.value != 7: time.sleep(0.01)\nslider.value"
    ).stdout == ("[0-1] 7\n")


@pytest.mark.parametrize("wait", ["", "time.sleep(0.5)"], ids=["quick", "long"])
def test_a_drawing_keeps_its_metadata(watched: Kernel, wait: str) -> None:
    cell = watched.run(f"""%%ranks
import time
from IPython.display import Image, display
display(Image(b"\\x89PNG", width=32))
display({{"text/html": "<b>1</b>"}}, raw=True, metadata={{"isolated": True}})
{wait}
""")
    assert cell.error is None, cell.error
    shown = [message for message in cell.contents("display_data") if WIDGET not in message["data"]]
    told = [message["metadata"] for message in shown if "<pre" not in str(message["data"])]
    assert told == [{"image/png": {"width": 32}}, {"isolated": True}]


@pytest.mark.parametrize(
    "start", [pytest.param("", id="shown"), pytest.param("%%capture told\n", id="captured")]
)
@pytest.mark.parametrize(
    "wait", [pytest.param("", id="quick"), pytest.param("time.sleep(0.5)", id="long")]
)
def test_where_nobody_sees_widgets_they_are_text_at_their_last_state(
    headless: Kernel, start: str, wait: str
) -> None:
    cell = headless.run(f"""{start}%%ranks
import ipywidgets, time
from IPython.display import HTML, display
bar = ipywidgets.IntProgress(max=2, description="epochs")
display(bar)
bar.value = 1
{wait}
bar.value = 2
""")
    assert cell.error is None, cell.error
    said = headless.run("told.show()") if start else cell
    assert said.stdout == "[0-1] epochs |██████████|\n"
    assert cell.displays == []
    cell = headless.run(f"%%ranks\ndisplay(bar)\n{wait}\ndisplay(HTML('<b>{{}}</b>'.format(rank)))")
    assert [bundle["text/html"] for bundle in cell.displays] == ["<b>0</b>", "<b>1</b>"]
    assert cell.stdout.count("epochs |██████████|") == 2 - bool(wait)


def test_without_anywidget_a_long_cell_is_text(tmp_path: Path) -> None:
    with Kernel(tmp_path, allow_stdin=True) as kernel:
        kernel.run("import sys; sys.modules['anywidget'] = None")
        kernel.run(SETUP.format(start_method="fork"))
        cell = kernel.start(LONG + "display(HTML('<b>table</b>'))")
        kernel.read_until(lambda: "[0-1] before\n" in cell.stdout)
        (kernel.cwd / "gate").touch()
        kernel.wait(cell)
        assert cell.error is None, cell.error
        assert "[1] after, on 1\n" in cell.stdout
        assert [bundle["text/html"] for bundle in cell.displays] == ["<b>table</b>"] * 2
        assert cell.contents("comm_open") == []
        kernel.run("session.close()")
