"""Which ranks of a session are meant: all, some by number, a slice, the main or last one."""

from __future__ import annotations

from collections.abc import Sequence

Selection = str | int | Sequence[int]

_HINT = "give 'all', 'main', 'last', a rank such as 0 or -1, a list 0,2 or a slice 1:"


def select(chosen: Selection, world_size: int) -> list[int]:
    """Return the ranks that are meant, in the order given.

    Parameters
    ----------
    chosen
        ``"all"`` or ``""``, ``"main"``, ``"last"``, a rank (negative: from the end), ranks with
        commas, a slice such as ``"1:"``, or a list of ranks.
    world_size
        How many ranks there are.

    Raises
    ------
    ValueError
        It names no rank, or one that is not there.

    Examples
    --------
    >>> select("1:", 4), select("0,-1", 4), select("main", 4), select([2], 4)
    ([1, 2, 3], [0, 3], [0], [2])
    """
    if isinstance(chosen, str):
        parts = chosen.split(",") if chosen.strip() else ["all"]
        try:
            found = [rank for part in parts for rank in _named(part.strip(), world_size)]
        except (ValueError, TypeError):
            raise ValueError(f"ranks={chosen!r}: {_HINT}") from None
    else:
        found = [chosen] if isinstance(chosen, int) else list(chosen)
    ranks = [_checked(rank, world_size) for rank in found]
    if not ranks:
        raise ValueError(f"ranks={chosen!r} names no rank of {world_size}; {_HINT}")
    return list(dict.fromkeys(ranks))


def _named(part: str, world_size: int) -> Sequence[int]:
    words: dict[str, Sequence[int]] = {
        "all": range(world_size),
        "main": [0],
        "last": [world_size - 1],
    }
    if part in words:
        return words[part]
    if ":" in part:
        return range(world_size)[slice(*(int(p) if p else None for p in part.split(":")))]
    return [int(part)]


def _checked(rank: object, world_size: int) -> int:
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise TypeError(f"rank {rank!r}: {_HINT}")
    if not -world_size <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: there are ranks 0 to {world_size - 1}")
    return rank % world_size
