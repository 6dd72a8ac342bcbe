"""Where the ranks of a run are, as text: equal ranks together, the odd one out first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nbstate.job.ranks import Line
    from nbstate.job.run import Run
    from nbstate.wire import Collective


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
    return f"{head}:\n{_told(job, lines, stuck=True)}"


def _told(job: Run, lines: Sequence[Line], *, stuck: bool = False) -> str:
    here = [rank.index for rank in job.ranks]
    return "\n\n".join(filter(None, (_folded(lines), mismatch(lines, here, stuck=stuck))))


def mismatch(lines: Sequence[Line], here: Sequence[int], *, stuck: bool) -> str:
    """Say what is wrong if these ranks wait for each other in vain, else ``""``.

    Of ranks that are not `here` but on other nodes nothing is known. Ranks that are not `stuck` may
    be a call apart: who has left a collective first is soon in the next one.
    """
    waiting = {line.rank.index: c for line in lines if (c := line.collective) is not None}
    groups: dict[str, dict[int, Collective]] = {}
    for rank, collective in waiting.items():
        groups.setdefault(collective.group, {})[rank] = collective
    at_work = [line.rank.index for line in lines]
    told = [_wrong_in(there, waiting, at_work, here, stuck=stuck) for there in groups.values()]
    return "\n".join(filter(None, told))


def _wrong_in(
    there: Mapping[int, Collective],
    waiting: Mapping[int, Collective],
    at_work: Sequence[int],
    here: Sequence[int],
    *,
    stuck: bool,
) -> str:
    """Say it of ranks in the collectives of one group; `waiting` are those in any."""
    numbers = {c.number for c in there.values()}
    calls = {(c.number, c.name, c.details) for c in there.values()}
    if len(calls) > (1 if stuck else len(numbers)):
        return (
            "these collectives do not match: every rank must call the same one, in the same order"
        )
    if len(numbers) > 1:
        return ""
    called = next(iter(there.values()))
    members = called.members or at_work
    # Whose C code holds the lock tells the name of its collective only.
    alike = {rank: c for rank, c in waiting.items() if c.name == called.name}
    same = [rank for rank, c in alike.items() if not (c.number and called.number)]
    absent = [rank for rank in members if rank in here and rank not in (*there, *same)]
    coming = [rank for rank in absent if rank in at_work]
    if coming:
        call = "call" if len(coming) > 1 else "calls"
        return f"{ranks_in_words(there)} will wait until {ranks_in_words(coming)} {call} it too"
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
