"""What a rank is told at its birth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbstate.rank.bootstrap import Setup
from nbstate.rank.call import Descriptor
from nbstate.start.place import Place, environment, threads_per_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbstate.job import Job
    from nbstate.ranks import Line


def setup_for(job: Job, line: Line, not_ours: Sequence[int]) -> Setup:
    """Return what the rank at the other end of `line` is told.

    `not_ours` are the kernel's descriptors, which a forked rank finds open and must not hold.
    """
    start, options, rank = job.start_method, job.options, line.rank
    place = Place(
        world_size=job.world_size,
        address=job.rendezvous.address,
        port=job.rendezvous.port,
        run_id=job.run_id,
        restarts=job.restarts,
    )
    return Setup(
        rank=rank.index,
        world_size=job.world_size,
        kernel_pid=start.kernel_pid,
        call=start.call,
        surroundings=start.surroundings,
        environment=environment(place, rank.index, options, rank.error_file),
        trace=options.trace,
        threads=threads_per_rank(job.world_size, options),
        seed=options.seed,
        connection=line.far_connection,
        stdout=Descriptor(line.far_stdout),
        stderr=Descriptor(line.far_stderr),
        stacks=Descriptor(line.far_stacks),
        not_ours=not_ours if start.surroundings is None else (),
    )
