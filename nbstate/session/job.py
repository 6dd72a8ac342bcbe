"""The ranks of a session as a job: they do one errand at a time, and what is noted is of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbstate.job import Job

if TYPE_CHECKING:
    from nbstate.session.errand import Errand


class SessionJob(Job):
    """A job whose ranks return only when their session ends.

    Attributes
    ----------
    errand
        What they are doing now; None while they are idle.
    cells
        The source of each cell that they were given, and its number in the notebook.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.errand: Errand | None = None
        self.cells: dict[str, int] = {}
        self.loop.watch.errand = lambda: self.errand

    def note(self, line: str) -> None:
        """Have a line read where it belongs: in the cell that the ranks are busy with, if any."""
        if self.errand is None:
            super().note(line)
        else:
            self.errand.note(line)

    def _pressed(self) -> None:
        self.kill()  # who was asked for nothing yet hears no interrupt, and has nothing to lose

    def begin(self, errand: Errand) -> None:
        """Some ranks are about to be asked for something."""
        self.errand = errand
        others = {rank.index for rank in self.ranks} - errand.parts.keys()
        absent = dict.fromkeys(others, "it takes no part in the cell")

        def begin() -> None:
            self.loop.watch.spoke()
            self.loop.matcher.begin(absent)

        self.loop.ask(begin)

    def finished(self, rank: int) -> None:
        """A rank has done its part: until the others have, it is asked for no more."""
        self.loop.matcher.returned(rank, "it has finished the cell")
