"""Structures with tensors in them: lists, tuples, named tuples, dicts, dataclasses, mappings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def is_namedtuple(data: object) -> bool:
    """Whether this is a tuple with names for its places."""
    return isinstance(data, tuple) and hasattr(data, "_fields")


def children(data: Any) -> list[tuple[str, Any]] | None:
    """The parts of a structure, each with the step to it (``[0]``, ``.x``); None for a leaf."""
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return [(f".{f.name}", getattr(data, f.name)) for f in dataclasses.fields(data) if f.init]
    if isinstance(data, Mapping):
        return [(f"[{key!r}]", value) for key, value in data.items()]
    if isinstance(data, (list, tuple)):
        return [(f"[{index}]", value) for index, value in enumerate(data)]
    return None


def rebuilt(data: Any, parts: list[Any]) -> Any:
    """A structure of the same type with other parts, given in the order of `children`."""
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        names = [field.name for field in dataclasses.fields(data) if field.init]
        return dataclasses.replace(data, **dict(zip(names, parts, strict=True)))
    kind: Any = type(data)
    if isinstance(data, Mapping):
        return kind(dict(zip(data, parts, strict=True)))
    return kind(*parts) if is_namedtuple(data) else kind(parts)


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, in an order that is the same on all ranks."""
    parts = children(data)
    if parts is None:
        yield path, data
        return
    for step, part in parts:
        yield from leaves(part, path + step)


def map_tensors(function: Callable[[torch.Tensor], Any], data: Any, name: str = "") -> Any:
    """The structure with the function applied to each tensor.

    Parameters
    ----------
    function : callable
        What to do with a tensor.
    data : nested structure
        Left as it is.
    name : str
        An operation that only takes tensors, which other leaves are refused in the name of.

    Raises
    ------
    TypeError
        A leaf is no tensor; its path is named.
    """

    def change(part: Any, path: str) -> Any:
        if isinstance(part, torch.Tensor):
            return function(part)
        parts = children(part)
        if parts is not None:
            return rebuilt(part, [change(each, path + step) for step, each in parts])
        if name:
            where = f" at {path}" if path else ""
            raise TypeError(
                f"{name} takes tensors, alone or nested, and got {type(part).__name__}{where}; "
                f"for other objects there are gather_object and broadcast_object_list"
            )
        return part

    return change(data, "")
