"""Bars that libraries draw as HTML, changed in place by their display id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernels import Cell, Kernel
from tests.view.models import WIDGET, Models
from tests.view.starts import STARTS, launching

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=STARTS)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel"), allow_stdin=True) as kernel:
        kernel.run(launching(request.param))
        yield kernel


def page(cell: Cell) -> str:
    """Return the HTML that the run left, which needs no kernel."""
    assert cell.error is None, cell.error
    (bundle,) = cell.displays
    assert WIDGET not in bundle
    return str(bundle["text/html"])


def shown(cell: Cell) -> list[str]:
    """Return every state that a page got to see of the drawings of all ranks."""
    ids = [change[2] for change in Models(cell).changes() if change[1] == "draw"]
    return [
        message["data"]["state"]["outputs"][0]["data"]["text/html"]
        for kind in ("comm_open", "comm_msg")
        for message in cell.contents(kind)
        if message["comm_id"] in ids and message["data"].get("state", {}).get("outputs")
    ]


def test_fastais_bars(watched: Kernel) -> None:
    cell = watched.run("""
        def train():
            import time
            from fastprogress import master_bar, progress_bar
            epochs = master_bar(range(2))
            epochs.write(["epoch", "loss"], table=True)
            for epoch in epochs:
                for step in progress_bar(range(20), parent=epochs):
                    time.sleep(0.03)
                    epochs.child.comment = f"step {step}"
                epochs.write([str(epoch), f"{1 / (epoch + 1):.2f}"], table=True)
            for _ in progress_bar(range(8), leave=False):
                time.sleep(0.01)
        notebook_launcher(train, num_processes=2);
    """)
    html = page(cell)
    assert html.count("<td>1.00</td>") == html.count("<td>0.50</td>") == 2
    assert "<progress" not in html  # fastai's own rule: a table is left of a bar
    moved = shown(cell)
    assert any("value='1' class='' max='2'" in state for state in moved)
    assert any("step 10" in state for state in moved)


def test_transformers_bars(watched: Kernel) -> None:
    pytest.importorskip("transformers", reason="150 MB, so by choice: pip install transformers")
    cell = watched.run("""
        def train():
            import time
            from transformers.utils.notebook import NotebookTrainingTracker
            tracker = NotebookTrainingTracker(20, ["Step", "Loss"])
            for step in range(21):
                tracker.update(step, force_update=True, comment=f"Epoch {step / 10:.1f}")
                if step in (10, 20):
                    tracker.write_line({"Step": step, "Loss": 1 / step})
                    evaluation = tracker.add_child(4, prefix="Evaluation")
                    for batch in range(5):
                        evaluation.update(batch, force_update=True)
                        time.sleep(0.05)
                    tracker.remove_child()
                time.sleep(0.03)
            print("trained")
        notebook_launcher(train, num_processes=2);
    """)
    html = page(cell)
    assert html.count("<progress value='20' max='20'") == 2
    assert html.count("<td>0.100000</td>") == html.count("<td>0.050000</td>") == 2
    assert "Evaluation" not in html
    for rank in html.split("<summary>")[1:]:
        assert rank.index("</table>") < rank.index("trained")
    moved = shown(cell)
    assert any("<progress value='10' max='20'" in state for state in moved)
    assert any("Evaluation" in state for state in moved)
