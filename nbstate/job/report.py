"""How a run ended, told from what its ranks said and how their processes ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Literal

from nbstate import memory, values
from nbstate.wire import Failed

if TYPE_CHECKING:
    from nbstate.errors import RankError, RankFailure
    from nbstate.job.ranks import Line, Rank
    from nbstate.job.run import Run
    from nbstate.job.stacks import Stack

Outcome = Literal["done", "failed", "stopped"]


def outcome(job: Run) -> tuple[Outcome, RankError | None]:
    """Return the state in which a finished job is, and the error to raise for it."""
    failures = [*own_failures(job), *job.nodes.failures]
    if not failures:
        return "done", None
    from nbstate import errors

    failures.sort(key=lambda failure: (failure.secondary, failure.when))
    found = {failure.rank: failure for failure in failures}
    finished = dict(sorted(job.values.items()))
    told_of = "finished; what it returned is in error.results"
    others = dict.fromkeys(finished.keys() - found.keys(), told_of)
    told: tuple[Any, ...] = (job.name, job.world_size, found, finished, others, job.restarts)
    real = any(not failure.secondary for failure in failures)
    if job.loop.reason == "timeout" and not real:
        assert job.options.timeout is not None
        return "failed", errors.RankTimeoutError(job.options.timeout, *told)
    if (job.loop.reason == "stop" or job.nodes.stopped_by) and not real:
        return "stopped", errors.JobStoppedError(job.nodes.stopped_by, *told)
    return "failed", errors.RankError(*told)


def own_failures(job: Run) -> list[RankFailure]:
    """Say how each rank of this node that is not done failed."""
    return [failure_of(job, line) for line in job.loop.lines if line.rank.state != "done"]


def failure_of(job: Run, line: Line) -> RankFailure:
    """Say how one rank failed: by its own words, else by how its process ended."""
    said = line.failed
    if said is None:
        return _ended_without_word(job, line)
    from nbstate.errors import RankFailure

    assert line.rank.pid is not None
    return RankFailure(
        rank=line.rank.index,
        pid=line.rank.pid,
        exitcode=1 if line.rank.exitcode is None else line.rank.exitcode,
        error_file=line.rank.error_file,
        type_name=said.type_name,
        message=said.message,
        traceback=said.traceback,
        where=said.where,
        collective=said.collective,
        secondary=said.peer_lost or (said.interrupted and line.told_to_stop),
        exception=exception_of(said),
        when=said.when + job.nodes.clock,
        node=job.nodes.number,
    )


def _ended_without_word(job: Run, line: Line) -> RankFailure:
    from nbstate.errors import RankFailure, end_in_words

    rank = line.rank
    stack = line.stack
    message = end_in_words(rank.exitcode)
    why = job.start_method.why_ended(rank.exitcode, began=line.began)
    if line.ended_by_us and not line.began:
        message = "stopped before it began"
    elif line.deaf_in is not None:
        message = "lost its peer" if job.loop.reason == "failure" else "ended while it waited"
    elif line.ended_by_us and job.loop.at_once:
        message = f"ended at once; {message}"
    elif line.ended_by_us:
        message = f"did not stop within grace={job.options.grace:g} s; {message}"
    elif why:
        message = why
    elif rank.exitcode == -signal.SIGKILL:
        message += _why_killed(job, rank)
    elif rank.exitcode == -signal.SIGBUS:
        message += memory.of_shared_memory()
    assert rank.pid is not None
    return RankFailure(
        rank=rank.index,
        pid=rank.pid,
        exitcode=1 if rank.exitcode is None else rank.exitcode,
        error_file=rank.error_file,
        message=message,
        traceback=_last_stack(stack),
        where=stack.where if line.deaf_in is None else line.deaf_in.where,
        collective=stack.collective if line.deaf_in is None else line.deaf_in.name,
        secondary=line.ended_by_us,
        when=line.ended_at + job.nodes.clock,
        node=job.nodes.number,
    )


def _last_stack(stack: Stack) -> str:
    return f"Last Python stack, innermost line first:\n{stack}" if stack.frames else ""


def _why_killed(job: Run, rank: Rank) -> str:
    """What is known about memory when a rank was killed, and no guess beyond it."""
    before, now = job.loop.memory_kills, memory.kills_for_memory()
    size, whose = memory.limit()
    told = []
    if before is not None and now is not None and now > before:
        told.append("the memory limit was hit")
    if rank.memory is not None:
        told.append(f"it last used {memory.in_words(rank.memory)}")
    told.append(f"the {whose} has {memory.in_words(size)}")
    return "; " + ", ".join(told)


def not_rebuilt(error: Exception) -> Failed:
    """Return the failure of a rank whose value arrived but cannot be built in the kernel."""
    from nbstate.rank.failure import describe

    told = describe(error)
    return Failed(
        when=told.when,
        type_name=told.type_name,
        message=f"its result could not be rebuilt in the kernel: {told.message}",
        traceback=told.traceback,
    )


def exception_of(said: Failed) -> BaseException | None:
    """Return the exception that a rank told of, where it can travel."""
    if said.exception is None:
        return None
    try:
        found = values.load(said.exception, ())
    except Exception:  # told as text all the same
        return None
    return found if isinstance(found, BaseException) else None
