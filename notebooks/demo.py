"""Execute the quickstart in a real kernel and say what came of it: `make demo`."""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

QUICKSTART = Path(__file__).with_name("00_quickstart.ipynb")
RESULTS = Path(__file__).parents[1] / "build" / "demo"


def main() -> None:
    print(f"Executing {QUICKSTART.name}: two processes learn to read handwritten digits ...")
    notebook = nbformat.read(QUICKSTART, as_version=4)
    started = time.perf_counter()
    NotebookClient(
        notebook,
        resources={"metadata": {"path": QUICKSTART.parent}},
        extra_arguments=["--log-level=ERROR"],  # of the kernel
    ).execute()
    seconds = time.perf_counter() - started

    RESULTS.mkdir(parents=True, exist_ok=True)
    executed = RESULTS / QUICKSTART.name
    nbformat.write(notebook, executed)
    page = executed.with_suffix(".html")
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")

    print(f"Test accuracy: {_accuracy(notebook)}")
    print(f"It took {seconds:.1f} s, the start of the kernel included.")
    print(f"Executed notebook: {executed}")
    print(f"The same as a page: {page}")


def _accuracy(notebook: nbformat.NotebookNode) -> str:
    """Return the line that the cell tagged `accuracy` printed."""
    (cell,) = (c for c in notebook.cells if "accuracy" in c.metadata.get("tags", []))
    return cell.outputs[0].text.strip()


if __name__ == "__main__":
    main()
