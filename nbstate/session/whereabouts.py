"""Where the ranks of a session are in what they were asked to do, as text.

As `nbstate.job.whereabouts` tells it of a run. The stacks end at the cell, and have its lines.
"""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from nbstate.job import whereabouts
from nbstate.job.stacks import Stack
from nbstate.rank import failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbstate.job.ranks import Line
    from nbstate.session.errand import Errand

_SHELL = f"{os.sep}IPython{os.sep}core{os.sep}interactiveshell.py"


def told(errand: Errand, *, stuck: bool = False) -> str:
    """Return where each rank is that has not done its part; they have just said it."""
    lines = [errand.job.loop.lines[rank] for rank in errand.pending]
    groups: dict[str, list[int]] = {}
    for line in lines:
        stack = _stack(line, errand.job.cells)
        state = whereabouts.state_of(line, lines) + (f":\n{stack}" if stack.frames else "")
        groups.setdefault(state, []).append(line.rank.index)
    odd_first = sorted(groups.items(), key=lambda group: (len(group[1]), group[1]))
    parts = [f"{whereabouts.ranks_in_words(ranks)}{state}" for state, ranks in odd_first]
    parts.append(whereabouts.mismatch(lines, range(errand.world_size), stuck=stuck))
    return "\n\n".join(filter(None, parts)) or "no rank is at work"


def stall(errand: Errand) -> str:
    """Return the report of ranks that no longer get on, and who is done with the cell."""
    head = f"no sign of life from {whereabouts.ranks_in_words(errand.pending)}"
    head += f" for {errand.options.stall_after:g} s"
    if errand.finished:
        are = "is" if len(errand.finished) == 1 else "are"
        head += f"; {whereabouts.ranks_in_words(errand.finished)} {are} done with the cell"
    return f"{head}:\n{told(errand, stuck=True)}"


def _stack(line: Line, cells: Mapping[str, int]) -> Stack:
    """Return a rank's stack, up to the cell that it runs."""
    frames = tuple(takewhile(lambda frame: not frame.file.endswith(_SHELL), line.stack.frames))
    for frame in frames:
        if failure.is_cell(frame.file):
            _learn(frame.file, cells)
    return Stack(frames)


def _learn(file: str, cells: Mapping[str, int]) -> None:
    """Know the name and the source of a cell by the file that it is in a rank."""
    for source, count in cells.items():
        if file not in failure.cell_names and _is_file_of(file, source, count):
            failure.learn_cells({file: (f"Cell In[{count}]", source.splitlines(keepends=True))})


def _is_file_of(file: str, source: str, count: int) -> bool:
    if file.startswith("<"):  # of a shell without a kernel, as fresh ranks have
        return count > 0 and file.startswith(f"<ipython-input-{count}-")
    return Path(file).name in failure.names_of_cell(source)
