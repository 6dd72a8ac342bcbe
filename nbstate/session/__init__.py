"""Ranks that stay alive between cells.

session     what the user holds: run, refork, close;  variables: push, pull, scatter, sync
magics      `%%ranks` and its relatives
team        the ranks, from their start to their end
errand      one thing that some of them do; part: what one rank has to do with it
release     ranks freed from what they are in
dropped     sessions that nothing refers to any more
selection   which of them
sockets     connections between them
"""

from nbstate.session.session import Session, current

__all__ = ["Session", "current"]
