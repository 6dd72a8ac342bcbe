"""Lines of several ranks as one text: equal lines folded, each rank's order kept."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Said:
    """One line of a rank; `stream` is 'stdout' or 'stderr'."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Folded:
    """One line and the ranks that said it."""

    ranks: tuple[int, ...]
    line: Said


def fold(lines: Mapping[int, Sequence[Said]]) -> list[Folded]:
    """Merge the ranks' lines, those that several ranks said standing once.

    Every rank's own order is kept. The outcome depends on the lines only, not on the order in which
    the ranks said them: a line waits for the ranks that will say it too, as far as that is
    possible, and different lines at the same place alternate by rank.

    Examples
    --------
    >>> hello, a, b = (Said("stdout", text) for text in ("hello", "a", "b"))
    >>> [(said.ranks, said.line.text) for said in fold({0: [hello, a], 1: [hello, b]})]
    [((0, 1), 'hello'), ((0,), 'a'), ((1,), 'b')]
    """
    return list(_merge({rank: deque(said) for rank, said in lines.items() if said}))


def ranges(ranks: Sequence[int]) -> str:
    """Return rank numbers in short, such as '0-3' or '0,2'."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _merge(left: dict[int, deque[Said]]) -> Iterator[Folded]:
    coming = {rank: Counter(said) for rank, said in left.items()}
    holders = Counter(line for counts in coming.values() for line in counts)
    emitted: Counter[int] = Counter()
    while left:
        heads: dict[Said, list[int]] = defaultdict(list)
        for rank in left:
            heads[left[rank][0]].append(rank)
        order = sorted(left, key=lambda rank: (emitted[rank], rank))
        ready = (rank for rank in order if holders[left[rank][0]] == len(heads[left[rank][0]]))
        line = left[next(ready, order[0])][0]
        for rank in heads[line]:
            left[rank].popleft()
            emitted[rank] += 1
            coming[rank][line] -= 1
            if not coming[rank][line]:
                holders[line] -= 1
            if not left[rank]:
                del left[rank]
        yield Folded(tuple(sorted(heads[line])), line)
