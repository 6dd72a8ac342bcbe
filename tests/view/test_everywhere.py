"""The same run in every kind of front end that a test can start."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import IPython
import nbclient
import nbformat
import pytest

from nbstate.view.terminal import Screen
from tests.kernels import FOREIGN_ENV, Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]

FUNCTION = """\
import os
from nbstate import notebook_launcher
def train():
    rank = int(os.environ["RANK"])
    print("hello")
    print(f"loss of rank {rank}")
    return rank
"""
LAUNCH = "results = notebook_launcher(train, num_processes=2)"
TEXT = ["[0-1] hello", "[0] loss of rank 0", "[1] loss of rank 1"]

TITLE = "--TerminalInteractiveShell.term_title=False"

DRAWING = """\
from IPython.display import HTML, display
def train():
    print("<script>alert(1)</script>")
    display(HTML("<b>a table</b>"))
results = notebook_launcher(train, num_processes=2)
"""


def environment(cwd: Path) -> dict[str, str]:
    mine = {k: v for k, v in os.environ.items() if not FOREIGN_ENV.match(k)}
    return mine | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(cwd / "ipython")}


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found


def typed(command: Sequence[str], lines: Sequence[str], cwd: Path) -> str:
    """Return what a terminal gets to see while a person types these lines."""
    terminal, other_side = pty.openpty()
    sides = dict.fromkeys(("stdin", "stdout", "stderr"), other_side)
    shown = b""
    with subprocess.Popen([sys.executable, *command], cwd=cwd, env=environment(cwd), **sides):
        os.close(other_side)
        os.write(terminal, "".join(f"{line}\n" for line in lines).encode())
        with contextlib.suppress(OSError):  # so Linux says that the other side is closed
            while piece := os.read(terminal, 65_536):
                shown += piece
    os.close(terminal)
    return shown.decode()


def executed(cells: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a notebook as nbconvert and papermill do."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(book, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return book


def test_plain_python(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FUNCTION + LAUNCH)
    lines = run("script.py", cwd=tmp_path).stdout.splitlines()
    assert lines[:3] == TEXT
    assert re.fullmatch(r"train: done on 2 ranks in \d+\.\d s", lines[3])


def test_ipython_in_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FUNCTION + LAUNCH)
    found = run("-m", "IPython", "--colors=NoColor", TITLE, "script.py", cwd=tmp_path)
    assert found.stdout.splitlines()[:3] == TEXT


@pytest.mark.skipif(IPython.version_info < (8,), reason="its terminal shows any result as text")
def test_a_person_in_a_terminal_sees_no_result_where_there_is_none(tmp_path: Path) -> None:
    cells = [
        "from nbstate import notebook_launcher",
        "notebook_launcher(print, ('hello',), num_processes=2)",
        "notebook_launcher(int, num_processes=2)",
        "exit",
    ]
    command = ["-m", "IPython", "--no-banner", "--colors=NoColor", TITLE, "--simple-prompt"]
    screen = Screen()
    screen.feed(typed(command, cells, cwd=tmp_path))
    text = "\n".join(line.text for line in screen.take_all())
    assert "[0-1] hello" in text
    assert "Out[3]: RankResults([0, 0])" in text
    assert "Out[2]" not in text


def test_a_notebook_run_without_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = executed([FUNCTION, LAUNCH], tmp_path, monkeypatch)
    text = "".join(output.text for output in book.cells[1].outputs)
    assert text.splitlines() == [*TEXT, "train: done on 2 ranks"]
    assert "widgets" not in book.metadata


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("papermill", ["a.ipynb", "b.ipynb", "--parameters", "rate", "3"]),
        ("nbconvert", ["--execute", "--to=notebook", "--output=b.ipynb", "a.ipynb"]),
    ],
)
def test_what_runs_notebooks_saves_text_and_no_widget(
    tmp_path: Path, module: str, options: Sequence[str]
) -> None:
    pytest.importorskip(module)
    parameters = nbformat.v4.new_code_cell("rate = 1", metadata={"tags": ["parameters"]})
    launch = FUNCTION.replace("return rank", "return rank * rate") + f"{LAUNCH}\nresults"
    book = nbformat.v4.new_notebook(cells=[parameters, nbformat.v4.new_code_cell(launch)])
    book.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python"}
    nbformat.write(book, tmp_path / "a.ipynb")
    run("-m", module, *options, cwd=tmp_path)
    saved = nbformat.read(tmp_path / "b.ipynb", 4)
    *streams, result = saved.cells[-1].outputs
    text = "".join(output.text for output in streams)
    assert text.splitlines() == [*TEXT, "train: done on 2 ranks"]
    rate = 3 if module == "papermill" else 1
    assert result.data == {"text/plain": f"RankResults([0, {rate}])"}
    assert "widgets" not in saved.metadata


def test_a_background_job_run_without_a_person_speaks_where_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = "from nbstate import launch\njob = launch(train, num_processes=2)"
    book = executed(
        [FUNCTION, launch, "import gc\ngc.collect()\n6 * 7", "values = job.wait()"],
        tmp_path,
        monkeypatch,
    )
    (output,) = book.cells[2].outputs
    assert output.data["text/plain"] == "42"
    text = "".join(output.text for output in book.cells[3].outputs)
    assert text.splitlines() == [*TEXT, "train: done on 2 ranks"]


def test_its_html_shows_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporters = pytest.importorskip("nbconvert.exporters")
    book = executed([FUNCTION, DRAWING], tmp_path, monkeypatch)
    html, _ = exporters.HTMLExporter().from_notebook_node(book)
    assert html.count("<b>a table</b>") == 2
    assert "<script>alert(1)</script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_a_second_run_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbval")
    book = executed([FUNCTION, LAUNCH, DRAWING], tmp_path, monkeypatch)
    nbformat.write(book, tmp_path / "a.ipynb")
    found = run("-m", "pytest", "--nbval", "-p", "no:cacheprovider", "a.ipynb", cwd=tmp_path)
    assert "3 passed" in found.stdout


@pytest.mark.parametrize("missing", ["ipywidgets", "anywidget"])
def test_without_widgets_there_is_text(tmp_path: Path, missing: str) -> None:
    with Kernel(tmp_path, allow_stdin=True) as kernel:
        kernel.run(f"import sys; sys.modules['{missing}'] = None")
        cell = kernel.run("""
            from nbstate import notebook_launcher
            notebook_launcher(lambda: print("hello"), num_processes=2)
        """)
    assert cell.error is None
    assert cell.stdout.startswith("[0-1] hello\n")
    assert cell.contents("comm_open") == []
