"""The board's widget. Importing this module imports ipywidgets and anywidget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

_HERE = Path(__file__).parent


class BoardWidget(anywidget.AnyWidget):
    """All ranks of a job in one widget; `board.js` tells the messages it takes."""

    # One module, because a page without a server of ours cannot load a second file.
    _esm = "\n".join((_HERE / f"{name}.js").read_text() for name in ("screen", "pane", "board"))
    _css = (_HERE / "board.css").read_text()

    ranks: Any = traitlets.List(traitlets.Int()).tag(sync=True)
    kernel: Any = traitlets.Unicode().tag(sync=True)
    status: Any = traitlets.Dict().tag(sync=True)
    tail: Any = traitlets.Dict().tag(sync=True)
    page: Any = traitlets.Unicode().tag(sync=True)
