"""The ranks of one run, from their start to their end.

job         what the user holds: wait, stop, results;  run: what everybody else sees of it
loop        the one thread that starts the ranks, hears them all, and sees them end
ranks       the kernel's ends of what ties it to one rank
output      what one rank has said and drawn
logs        the folders that keep all of it
report      how a run ended, in words
stacks      what a rank wrote about its own stack;  whereabouts: of all ranks, as text
inquiry     all ranks asked at once;  stall: asked because nothing moves
matching    traced collectives compared
deadlines   what is to be done later;  ending: how a run is stopped, step by step
processes   other processes, seen from outside
"""

from nbstate.job.job import Job, jobs

__all__ = ["Job", "jobs"]
