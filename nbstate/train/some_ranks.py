"""An exchange among some of the ranks, the others being busy elsewhere or through.

A group of these ranks would be the obvious way, but torch tells groups apart by how many a process
has made: once some ranks have made one more than others, the next `new_group` of all hangs. So this
goes through the store that all ranks share, which is slower and happens once an epoch at most.

Keys, under ``nbstate/some/<ranks>/``:

    turn/<rank>      how many exchanges this rank has begun
    <n>/<rank>       what it gave in exchange n
    <n>/read         how many have read all of it; the last one cleans up
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from nbstate.state import process_group

if TYPE_CHECKING:
    from collections.abc import Sequence


def exchange(ranks: Sequence[int], own: int, value: object) -> list[Any]:
    """Every one of these ranks' values, in their order; `own` is the calling rank.

    Raises
    ------
    RuntimeError
        The backend has no store.
    """
    if len(ranks) == 1:
        return [value]
    store = process_group.store()
    if store is None:
        raise RuntimeError(
            "in this round some ranks have no batch, and this backend cannot gather from the "
            "others only; use even_batches=True"
        )
    place = f"nbstate/some/{'-'.join(map(str, ranks))}"
    turn = store.add(f"{place}/turn/{own}", 1)
    keys = [f"{place}/{turn}/{rank}" for rank in ranks]
    store.set(f"{place}/{turn}/{own}", pickle.dumps(value))
    values = [pickle.loads(store.get(key)) for key in keys]
    if store.add(f"{place}/{turn}/read", 1) == len(ranks):
        for key in (*keys, f"{place}/{turn}/read"):
            store.delete_key(key)
    return values
