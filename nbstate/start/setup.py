"""What a rank is told at its birth."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbstate.rank.bootstrap import Setup
from nbstate.rank.call import Descriptor
from nbstate.start.place import MARK, Place, environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbstate.job.ranks import Line
    from nbstate.job.run import Run


def setup_for(job: Run, line: Line, not_ours: Sequence[int]) -> Setup:
    """Return what the rank at the other end of `line` is told.

    `not_ours` are the kernel's descriptors, which a forked rank finds open and must not hold.
    """
    start, options, rank = job.start_method, job.options, line.rank
    nodes = job.nodes
    place = Place(
        rank=rank.index,
        world_size=nodes.world_size,
        local_rank=rank.index - nodes.offset,
        local_world_size=len(job.ranks),
        node=nodes.number or 0,
        nodes=nodes.count,
        address=nodes.meeting_point.address,
        port=nodes.meeting_point.port,
        here=nodes.address,
        run_id=nodes.run_id or job.run_id,
        restarts=job.restarts,
    )
    threads = job.threads_per_rank
    variables = {**environment(place, options, rank.error_file, threads), MARK: job.run_id}
    return Setup(
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        kernel_pid=start.kernel_pid,
        kernel_group=os.getpgrp(),
        call=start.call,
        by_reference=start.by_reference,
        surroundings=start.surroundings,
        environment=variables,
        trace=options.trace,
        threads=threads,
        seed=options.seed,
        connection=line.far_connection,
        stdout=Descriptor(line.far_stdout),
        stderr=Descriptor(line.far_stderr),
        stacks=Descriptor(line.far_stacks),
        not_ours=not_ours if start.surroundings is None else (),
    )
