"""What a rank displays, in a real kernel: in order with its text, on the board and on the page."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.kernels import Cell, Kernel
from tests.view.models import Models
from tests.view.starts import STARTS, launching

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import os, time
from IPython.display import HTML, SVG, Image, Markdown, clear_output, display, update_display
from nbstate import launch, notebook_launcher
"""


@pytest.fixture(scope="module", params=STARTS)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel"), allow_stdin=True) as kernel:
        kernel.run(SETUP + launching(request.param))
        yield kernel


@pytest.fixture
def headless(shared_kernel: Kernel) -> Kernel:
    shared_kernel.run(SETUP)
    return shared_kernel


def page(cell: Cell) -> str:
    """Return the HTML that the run left."""
    assert cell.error is None, cell.error
    pages = [bundle["text/html"] for bundle in cell.displays if "text/html" in bundle]
    assert len(pages) == 1
    return str(pages[0])


def drawn(cell: Cell) -> list[dict[str, Any]]:
    """Return the outputs of the board's drawings, as they are at the end."""
    models = Models(cell)
    ids = [change[2] for change in models.changes() if change[1] == "draw"]
    return [models.states[key]["outputs"][0]["data"] for key in ids]


def test_drawings_and_text_keep_the_order_of_the_program(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            for i in range(3):
                print("text", i)
                display(HTML(f"<b>drawing {i}</b>"))
            time.sleep(1)
        notebook_launcher(train, num_processes=2);
    """)
    html = page(cell)
    first, second = html[: html.index("rank 1")], html[html.index("rank 1") :]
    for part in (first, second):
        assert re.findall(r"text \d|drawing \d", part) == [
            f"{kind} {i}" for i in range(3) for kind in ("text", "drawing")
        ]
    changes = [change for change in Models(cell).changes() if change[0] == 0]
    assert [change[1] for change in changes] == [0, "draw"] * 3
    assert drawn(cell)[0]["text/html"] == "<b>drawing 0</b>"


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        pytest.param('display(HTML("<i>html</i>"))', "<i>html</i>", id="html"),
        pytest.param('display(Markdown("# <title>"))', "# &lt;title&gt;", id="markdown"),
        pytest.param(
            "display(SVG(\"<svg xmlns='http://www.w3.org/2000/svg'/>\"))",
            "data:image/svg+xml;base64,",
            id="svg",
        ),
        pytest.param(
            "import PIL.Image; display(PIL.Image.new('RGB', (4, 4)))",
            "data:image/png;base64,iVBOR",
            id="PIL image",
        ),
        pytest.param(
            "import pandas; display(pandas.DataFrame({'column': [1]}))",
            "<th>column</th>",
            id="pandas frame",
        ),
        pytest.param(
            "display({'application/vnd.plotly.v1+json': {}, 'text/html': '<p>plot</p>'}, raw=True)",
            "<p>plot</p>",
            id="plotly's bundle",
        ),
        pytest.param("display({1, 2})", "{1, 2}", id="anything else"),
    ],
)
def test_every_kind_of_object_is_on_the_page(watched: Kernel, code: str, seen: str) -> None:
    cell = watched.run(f"""
        def train():
            {code}
        notebook_launcher(train, num_processes=2);
    """)
    assert page(cell).count(seen) == 2


def test_figures_shown_and_figures_left_open(watched: Kernel) -> None:
    watched.run("import matplotlib.pyplot as plt; plt.ioff()")
    cell = watched.run("""
        def train():
            plt.plot([1, 2])
            plt.show()
            print("between")
            plt.plot([2, 1])
        notebook_launcher(train, num_processes=2);
    """)
    parts = page(cell).split("between")
    assert [part.count("data:image/png") for part in parts] == [1, 2, 1]
    assert watched.run("len(plt.get_fignums())").result == "0"


def test_a_retina_figure_has_half_the_width_of_its_pixels(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            import matplotlib.pyplot as plt
            from matplotlib_inline.backend_inline import set_matplotlib_formats
            set_matplotlib_formats("retina")
            plt.plot([1, 2])
            plt.show()
        notebook_launcher(train, num_processes=2);
    """)
    found = re.findall(r'base64,([^"]+)" [^>]* width="(\d+)"', page(cell))
    assert len(found) == 2
    for picture, width in found:
        assert int.from_bytes(base64.b64decode(picture)[16:20], "big") // 2 == int(width)


def test_a_figure_of_the_kernel_is_not_drawn_by_the_ranks(watched: Kernel) -> None:
    cell = watched.run("""
        import matplotlib.pyplot as plt
        plt.plot([1, 2])
        notebook_launcher(lambda: print("hello"), num_processes=2)
        plt.close("all")
    """)
    assert "data:image/png" not in page(cell)


def test_a_figure_left_open_by_a_failure_is_shown(watched: Kernel) -> None:
    cell = watched.run("""
        import matplotlib.pyplot as plt
        def train():
            plt.plot([1, 2])
            raise ValueError("boom")
        notebook_launcher(train, num_processes=2)
    """)
    (bundle,) = cell.displays
    assert "data:image/png" in bundle["text/html"]


def test_an_update_changes_the_drawing_where_it_stands(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            handle = display("0%", display_id=True)
            print("after the bar")
            time.sleep(1)
            for percent in range(1, 101):
                handle.update(f"{percent}%")
            update_display("unknown", display_id="no such display")
        notebook_launcher(train, num_processes=2);
    """)
    html = page(cell)
    assert html.count("100%") == 2
    assert html.index("100%") < html.index("after the bar")
    assert "unknown" not in html
    assert [data["text/plain"] for data in drawn(cell)] == ["'100%'"] * 2


def test_cleared_output_is_gone(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            for epoch in range(3):
                clear_output(wait=True)
                print("epoch", epoch)
                display(HTML(f"<b>{epoch}</b>"))
            time.sleep(1)
        notebook_launcher(train, num_processes=2);
    """)
    html = page(cell)
    assert re.findall(r"epoch \d", html) == ["epoch 2"] * 2
    assert re.findall(r"<b>\d</b>", html) == ["<b>2</b>"] * 2


@pytest.mark.parametrize("start_method", STARTS)
def test_a_headless_run_is_text_and_one_page(headless: Kernel, start_method: str) -> None:
    cell = headless.run(f"""
        def train():
            print("before")
            handle = display("0%", display_id=True)
            handle.update("100%")
            display(HTML("<b>table</b>"))
            print("after")
        notebook_launcher(train, num_processes=2, start_method={start_method!r});
    """)
    assert cell.stdout == (
        "[0-1] before\n[0-1] <IPython.core.display.HTML object>\n[0-1] after\n[0-1] '100%'\n"
        "train: done on 2 ranks\n"
    )
    assert "<b>table</b>" in page(cell)
    assert cell.contents("update_display_data") == []
    assert cell.contents("comm_open") == []


def test_equal_headless_runs_read_equally(headless: Kernel) -> None:
    code = """
        def train():
            rank = os.environ["RANK"]
            print("start")
            for step in range(20):
                print(f"step {step}" if step % 5 else f"rank {rank} at step {step}")
            display(HTML("<b>table</b>"))
        notebook_launcher(train, num_processes=4);
    """
    runs = [headless.run(code) for _ in range(3)]
    assert len({run.stdout for run in runs}) == 1
    assert len({page(run) for run in runs}) == 1


def test_a_child_process_of_a_rank_cannot_disturb_its_channel(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            pid = os.fork()
            if pid == 0:
                display(HTML("<b>child</b>"))
                os._exit(0)
            os.waitpid(pid, 0)
            display(HTML("<b>rank</b>"))
            return "result"
        print(list(notebook_launcher(train, num_processes=2)))
    """)
    assert cell.stdout == "['result', 'result']\n"
    assert page(cell).count("<b>rank</b>") == 2


@pytest.mark.parametrize("start_method", STARTS)
def test_what_a_child_process_of_a_rank_draws_holds_up_nothing(
    headless: Kernel, start_method: str
) -> None:
    headless.run(f"""
        %load_ext nbstate
        import nbstate
        session = nbstate.Session(2, start_method={start_method!r})
    """)
    cell = headless.run("""%%ranks
import os
from IPython.display import HTML, clear_output, display
pid = os.fork()
if pid == 0:
    display(HTML("<b>child</b>"))
    clear_output()
    os._exit(0)
os.waitpid(pid, 0)
print("after the child")""")
    headless.run("session.close()")
    assert cell.stdout == "[0-1] after the child\n"
