"""The rows of a collated batch: counted, taken, and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbstate.operations.nested import children, rebuilt

if TYPE_CHECKING:
    from collections.abc import Sequence


def count(batch: Any) -> int | None:
    """How many rows a batch has, told by the first thing in it that has rows; None without any."""
    if _has_rows(batch):
        return len(batch)
    for _, part in children(batch) or []:
        found = count(part)
        if found is not None:
            return found
    return None


def take(batch: Any, rows: Sequence[int]) -> Any:
    """A batch of these rows only; what has no rows stays as it is."""
    if isinstance(batch, (torch.Tensor, np.ndarray)) and batch.ndim:
        return batch[list(rows)]
    if _has_rows(batch):
        return type(batch)(batch[row] for row in rows)
    parts = children(batch)
    return batch if parts is None else rebuilt(batch, [take(part, rows) for _, part in parts])


def join(batches: Sequence[Any]) -> Any:
    """The rows of several batches of one structure as one batch."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, torch.Tensor) and first.ndim:
        return torch.cat(list(batches))
    if isinstance(first, np.ndarray) and first.ndim:
        return np.concatenate(batches)
    if _has_rows(first):
        return type(first)(row for batch in batches for row in batch)
    parts = [children(batch) for batch in batches]
    if parts[0] is None:
        return first
    columns = zip(*[[part for _, part in each or []] for each in parts], strict=True)
    return rebuilt(first, [join(column) for column in columns])


def _has_rows(thing: Any) -> bool:
    """Tensors, arrays, and plain sequences of other things: collated strings, for one."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return thing.ndim > 0
    if not isinstance(thing, (list, tuple)):
        return False
    return not any(isinstance(part, np.ndarray) or _structured(part) for part in thing)


def _structured(part: Any) -> bool:
    return isinstance(part, torch.Tensor) or children(part) is not None
