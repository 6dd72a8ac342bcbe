"""Where the ranks of a run are, as text: equal ranks together, the odd one out first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbstate.job.ranks import Line
    from nbstate.job.run import Run


def stacks(job: Run) -> str:
    """Return the collective and the stack of each living rank, innermost line first."""
    job.loop.collect_stacks()
    lines = [line for line in job.loop.lines if line.at_work]
    if not lines:
        return f"no rank of {job.name} is at work"
    return _told(job, lines)


def stall(job: Run) -> str:
    """Return the report of ranks that no longer get on and have just said where they are."""
    lines = [line for line in job.loop.lines if line.at_work]
    done = [line.rank.index for line in job.loop.lines if line.rank.state == "done"]
    limit = f"{job.options.stall_after:g} s"
    late = ranks_in_words(line.rank.index for line in lines)
    if done:
        head = f"{late} still at work, {limit} after {ranks_in_words(done)} returned"
    else:
        head = f"no sign of life from any rank for {limit}"
    return f"{head}:\n{_told(job, lines)}"


def _told(job: Run, lines: Sequence[Line]) -> str:
    here = [rank.index for rank in job.ranks]
    return "\n\n".join(filter(None, (_folded(lines), mismatch(lines, here))))


def mismatch(lines: Sequence[Line], here: Sequence[int]) -> str:
    """Say what is wrong if these ranks wait for each other in vain, else ``""``.

    Of ranks that are not `here` but on other nodes nothing is known.
    """
    there = {line.rank.index: c for line in lines if (c := line.collective) is not None}
    if not there:
        return ""
    calls = {(c.group, c.number, c.name, c.details) for c in there.values()}
    if len(calls) > 1:
        return (
            "these collectives do not match: every rank must call the same one, in the same order"
        )
    missing = [line.rank.index for line in lines if line.rank.index not in there]
    if missing:
        return f"{ranks_in_words(there)} will wait until {ranks_in_words(missing)} calls it too"
    called = next(iter(there.values()))
    absent = [rank for rank in called.members if rank in here and rank not in there]
    if not absent:
        return ""
    wait = "waits" if len(there) == 1 else "wait"
    return f"{ranks_in_words(there)} {wait} for {ranks_in_words(absent)} in vain"


def _folded(lines: Sequence[Line]) -> str:
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        stack = f":\n{line.stack}" if line.stack.frames else ""
        groups.setdefault((state_of(line, lines), stack), []).append(line)
    ordered = sorted(groups.items(), key=lambda item: _oddness(item[1]))
    return "\n\n".join(
        f"{ranks_in_words(line.rank.index for line in same)}{state}{stack}"
        for (state, stack), same in ordered
    )


def _oddness(same: Sequence[Line]) -> tuple[int, bool, int]:
    return len(same), same[0].collective is not None, same[0].rank.index


def state_of(line: Line, lines: Sequence[Line]) -> str:
    """Say what one of these ranks is doing, as far as that tells it from the others."""
    if line.collective is not None:
        return f": in {line.collective}"
    if not line.began:
        return ": on the way to the function"
    if all(other.collective is None for other in lines):
        return ""
    begun = f", {line.pulse.calls} begun so far" if line.pulse is not None else ""
    return f": in no collective{begun}"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return ``rank 1``, or ``ranks 0, 2``."""
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
