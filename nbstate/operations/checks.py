"""Debug mode: ranks tell each other what they are about to do before they do it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from nbstate.operations.nested import leaves
from nbstate.state.life import caller

if TYPE_CHECKING:
    from nbstate.state.facts import ProcessFacts

_ADVICE = {
    "gather": "make shapes equal with pad_across_processes, or use gather(..., as_list=True)",
}


class DistributedOperationException(Exception):
    """The ranks were about to do different things in one collective; raised on all of them.

    Examples
    --------
    >>> def uneven():
    ...     gather(torch.ones(1 + PartialState().process_index))
    >>> try:
    ...     debug_launcher(uneven)
    ... except RankError as error:
    ...     print(error.original(DistributedOperationException))
    the ranks do not agree:
    rank  operation  tensors      called
    0     gather     (1) float32  ...
    1     gather     (2) float32  ...
    make shapes equal with pad_across_processes, or use gather(..., as_list=True)
    """


def check(facts: ProcessFacts, operation: str, data: Any, shapes: str = "equal") -> None:
    """Compare what all ranks are about to do, in debug mode.

    Parameters
    ----------
    facts : ProcessFacts
        This process.
    operation : str
        The name of the function.
    data : nested structure
        What it was given.
    shapes : {'equal', 'dimensions', 'any'}
        What must agree: shapes, the number of dimensions, or only the structure.

    Raises
    ------
    DistributedOperationException
        They do not agree, or a rank did not come within the group's timeout.
    """
    if not facts.debug or facts.place.world_size == 1:
        return
    mine = {"operation": operation, "where": caller(), "tensors": _described(data)}
    try:
        heard = facts.tell_everyone(json.dumps(mine), f"in {operation} {mine['where']}")
    except TimeoutError as error:
        raise DistributedOperationException(f"{operation} {mine['where']}: {error}") from None
    said = [json.loads(text) for text in heard]
    if len({_key(each, shapes) for each in said}) > 1:
        raise DistributedOperationException(_told(operation, said))


def _described(data: Any) -> list[tuple[str, list[int], str]]:
    return [
        (path, list(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for path, leaf in leaves(data)
        if isinstance(leaf, torch.Tensor)
    ]


def _key(said: dict[str, Any], shapes: str) -> str:
    def compared(path: str, shape: list[int], dtype: str) -> list[Any]:
        if shapes == "equal":
            return [path, shape, dtype]
        return [path, len(shape), dtype] if shapes == "dimensions" else [path]

    return json.dumps([said["operation"], [compared(*each) for each in said["tensors"]]])


def _told(operation: str, said: list[dict[str, Any]]) -> str:
    rows = [("rank", "operation", "tensors", "called")]
    for rank, each in enumerate(said):
        tensors = "  ".join(
            f"{path + ' ' if path else ''}({', '.join(map(str, shape))}) {dtype}"
            for path, shape, dtype in each["tensors"]
        )
        rows.append((str(rank), each["operation"], tensors or "-", each["where"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    same = len({each["operation"] for each in said}) == 1
    advice = _ADVICE.get(operation, "every rank must give the same shapes and types")
    if not same:
        advice = "every rank must call the same operations in the same order"
    return f"the ranks do not agree:\n{table}\n{advice}"
