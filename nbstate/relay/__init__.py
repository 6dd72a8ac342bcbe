"""Between a rank and the page: widgets that stay live both ways, and questions with their answers.

    rank --CommMessage--> Relay --> widgets: mirrored, and published for the page
    page ---------------> Proxy --> Relay --CommMessage--> rank
    rank --Question-----> Relay --> questions' thread --> the notebook's prompt --Answer--> rank

The job's loop brings what a rank says; the page is heard in a thread of the kernel. What goes to a
rank is handed to the loop, which alone writes to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbstate.relay.questions import Questions
from nbstate.relay.widgets import Widgets
from nbstate.wire import CommMessage, Question, Unasked

if TYPE_CHECKING:
    from nbstate.job import Job
    from nbstate.view.publish import Place


class Relay:
    """Carries the widgets and questions of one job's ranks.

    Parameters
    ----------
    job
        Whose ranks they are.
    place
        The cell or terminal that the job belongs to.
    live
        Somebody sees widgets; else they are only mirrored, for the page at the end.
    """

    def __init__(self, job: Job, place: Place, *, live: bool) -> None:
        self.widgets = Widgets(job.tell, place if live else None)
        job.handlers[CommMessage] = self.widgets.take
        questions = Questions(job, place)
        job.handlers[Question] = questions.ask
        job.handlers[Unasked] = questions.withdraw
