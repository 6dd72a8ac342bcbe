"""The thread under every view: it sleeps until its job has something to show.

    job's loop --event--> follower's thread --> Place (a cell, a terminal)

The thread reads the job and never touches a process. Whatever goes wrong in it is told once, in
text, and the view goes on plainly: the job does not notice.
"""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, ClassVar

from nbstate.view.page import make_page

if TYPE_CHECKING:
    from nbstate.job import Job
    from nbstate.relay.widgets import Widgets
    from nbstate.view.page import Page
    from nbstate.view.publish import Place


class View:
    """Follows one job. A subclass says what to do at each look.

    Parameters
    ----------
    job
        What to follow.
    place
        Where to show it.
    """

    pace = 0.25
    """Least seconds between two looks, however much the ranks print."""

    last_page: ClassVar[Page | None] = None
    """The page of the run that ended last, whatever its view was."""

    def __init__(self, job: Job, place: Place) -> None:
        self.job = job
        self.place = place
        self.widgets: Widgets | None = None
        self.changed = threading.Event()
        self.notes_told = 0
        self._beginning = threading.Lock()
        # In the context of the cell: what ipykernel sends for this thread is then the cell's.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="nbstate-view", daemon=True
        )

    def start(self) -> None:
        """Begin to follow the job.

        Who runs a notebook without a person keeps of each cell what comes while it runs: there, a
        job that nobody waits for yet is shown from the moment that somebody does.
        """
        if self.place.watched or self.job.options.wait:
            self._begin()
        else:
            self.job.view_to_come = self  # until its thread keeps it

    def _begin(self) -> None:
        with self._beginning:
            if self._thread.ident is None:
                self.job.listen(self.changed)
                self._thread.start()
                self.job.view_to_come = None

    def join(self, timeout: float | None = None) -> bool:
        """Wait until everything is shown, at most `timeout` seconds; tell whether it is."""
        self._begin()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self.tell_notes()  # those that came after the page was made
        self.place.flush()
        return True

    def look(self) -> float | None:
        """Show what is new; return the seconds until the next look if nothing changes."""
        raise NotImplementedError

    def finish(self, page: Page) -> None:
        """The job is done and everything has been looked at: leave what stays."""

    def keep(self, page: Page) -> None:
        """Remember the page of a run, for `last_run` and for cells that show the job again."""
        View.last_page = self.job.page = page

    def tell_notes(self) -> None:
        """Write the job's notes that have not been told yet."""
        for note in self.job.notes[self.notes_told :]:
            self.place.write("stdout", note + "\n")
            self.notes_told += 1

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # a view must not harm its job, whatever happens to it
            self._go_on_plainly(error)
        finally:
            self.job.unlisten(self.changed)

    def _follow(self) -> None:
        while True:
            self.changed.clear()
            done = self.job.done  # before the look, so that the last look sees everything
            rest = self.look()
            if done:
                break
            if not self.job.over_within(self.pace):
                self.changed.wait(rest)
        page = make_page(self.job, self.widgets, timed=self.place.watched)
        self.keep(page)
        self.finish(page)
        if self.widgets is not None:
            self.widgets.close()

    def _go_on_plainly(self, error: Exception) -> None:
        from nbstate.view.plain import PlainView

        try:
            self.place.write(
                "stderr",
                f"nbstate: the view of {self.job.name} failed ({type(error).__name__}: {error}); "
                "the run goes on, as plain text\n",
            )
            if not isinstance(self, PlainView):
                plain = PlainView(self.job, self.place)
                plain.changed, plain.widgets = self.changed, self.widgets
                plain._follow()
        except Exception:  # nowhere left to say it; the job itself is unharmed
            return
