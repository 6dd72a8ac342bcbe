"""The capture report: a table of what a function drags along."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from nbstate.baggage.parts import parts_of_function
from nbstate.baggage.scale import Scale, Weight
from nbstate.memory import in_words
from nbstate.table import as_html, as_text

_LOOKS = 1_000_000


@dataclass(frozen=True)
class Item:
    """One value that a function drags along.

    Attributes
    ----------
    name
        What the user called it, such as ``global variable 'data'``.
    type
        The name of its type.
    size
        Bytes, estimated for long containers; memory of two values counts for the first.
    copied
        Bytes of it that every fresh rank gets a copy of. Large tensors and arrays are shared by all
        ranks, and forked ranks copy nothing.
    devices
        Where its tensors are, if not on the CPU, such as ``cuda:0``.
    handles
        What is open in it, such as ``open file 'run.log' at .log``.
    """

    name: str
    type: str
    size: int
    copied: int
    devices: tuple[str, ...]
    handles: tuple[str, ...]

    @property
    def remark(self) -> str:
        """What to know before it travels, '' where there is nothing."""
        on = ", ".join(self.devices)
        moved = [f"on {on}: goes through the CPU"] if on else []
        return "; ".join([*moved, *(f"{each}: open it in the function" for each in self.handles)])


class Captured(Sequence[Item]):
    """What a function drags along, the largest first: a sequence of `Item` that shows as a table.

    Attributes
    ----------
    name
        The function's name.
    size
        Bytes of it all.
    """

    def __init__(self, name: str, items: Sequence[Item]) -> None:
        self.name = name
        self._items = sorted(items, key=lambda item: -item.size)
        self.size = sum(item.size for item in items)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    @property
    def summary(self) -> str:
        """One line: how much, and what becomes of it."""
        if not self._items:
            return f"{self.name} drags nothing along"
        copied = sum(item.copied for item in self._items)
        return (
            f"{self.name} drags {in_words(self.size)} along; forked ranks copy nothing, "
            f"a fresh rank copies {in_words(copied)} and shares the rest"
        )

    def __repr__(self) -> str:
        return "\n".join([self.summary, as_text([_row(item) for item in self._items])]).rstrip()

    def _repr_html_(self) -> str:
        rows = [_row(item) for item in self._items]
        head = ("what", "type", "size", "remark")
        return f"<p>{html.escape(self.summary)}</p>{as_html(head, rows) if rows else ''}"


def _row(item: Item) -> tuple[str, str, str, str]:
    return item.name, item.type, in_words(item.size), item.remark


def captured(function: Callable[..., Any]) -> Captured:
    """Return what a function drags along to the ranks: names, sizes, devices, open handles.

    Closure variables, globals that it or the notebook's functions it calls read, defaults, the
    object of a method and the arguments of a partial.

    Parameters
    ----------
    function
        What would be launched.

    Returns
    -------
    Captured
        A sequence of `Item`, the largest first; it shows as a table.

    Raises
    ------
    TypeError
        It is no function.

    Examples
    --------
    >>> def train(lr, data=bytes(1000)): ...
    >>> [(item.name, item.type) for item in captured(train)]
    [("default of 'data'", 'bytes')]
    """
    if not callable(function):
        raise TypeError(f"function={function!r}: expected a function, such as train")
    scale = Scale(_LOOKS)
    items = [_item(name, value, scale.weigh(value)) for name, value in parts_of_function(function)]
    return Captured(getattr(function, "__name__", type(function).__name__), items)


def _item(name: str, value: object, weight: Weight) -> Item:
    return Item(
        name,
        type(value).__name__,
        round(weight.size),
        round(weight.size - weight.shared),
        tuple(sorted(weight.devices)),
        tuple(f"{what} at {path}" if path else what for path, what in weight.handles),
    )
