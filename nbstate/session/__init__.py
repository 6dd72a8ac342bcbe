"""Ranks that stay alive between cells.

session     what the user holds: run, push, pull, refork
magics      `%%ranks` and its relatives
team        the ranks, from their start to their end
errand      one thing that some of them do
selection   which of them
travel      functions on their way to them
sockets     connections between them
"""

from nbstate.session.session import Session, current

__all__ = ["Session", "current"]
