"""Weighs values: their bytes, which of those fresh ranks share, and what is tied to the kernel."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import types
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbstate import values
from nbstate.baggage.handles import handle

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALIKE = 1000
"""Of a longer container this many elements are looked at; the others are taken to be like them."""

_DEEPEST = 100

_WHOLE = (type, types.FunctionType, types.ModuleType, logging.Logger, io.IOBase)
"""Kinds of values that are not looked into: most travel by their names."""


@dataclass
class Weight:
    """What one value weighs, in bytes, and what is special about it.

    Attributes
    ----------
    size
        All of it; memory that another value before had too does not count again.
    shared
        The part in tensors and arrays so big that fresh ranks share them; the rest is copied.
    devices
        The devices of tensors that are not on the CPU, such as ``cuda:0``.
    handles
        What is open in it, as pairs of a path inside the value and words such as ``open file``.
    """

    size: float = 0
    shared: float = 0
    devices: set[str] = field(default_factory=set)
    handles: list[tuple[str, str]] = field(default_factory=list)


class Scale:
    """Weighs one value after the other.

    Parameters
    ----------
    looks
        How many objects it looks at, in all; what comes after those weighs nothing.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._seen: set[object] = set()
        self._kept: list[object] = []  # an object that is gone would leave its id to another

    def weigh(self, value: object) -> Weight:
        """Return the weight of a value and of all that it holds; 0 if it cannot be looked at."""
        weight = Weight()
        # A class of the user's may raise whatever it likes where its objects are looked at.
        with contextlib.suppress(Exception):
            weight.size = self._weigh(value, "", weight, depth=0)
        return weight

    def _weigh(self, value: Any, path: str, weight: Weight, depth: int) -> float:
        if not self._looks or depth > _DEEPEST or not self._is_new(value):
            return 0
        self._looks -= 1
        what = handle(value)
        if what is not None:
            weight.handles.append((path, what))
            return 0
        size = self._data_size(value, weight)
        if size is not None:
            return size
        return _own_size(value) + self._weigh_parts(value, path, weight, depth)

    def _weigh_parts(self, value: Any, path: str, weight: Weight, depth: int) -> float:
        parts, share = _parts(value)
        return share * sum(
            self._weigh(part, path + step, weight, depth + 1) for step, part in parts
        )

    def _is_new(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True

    def _data_size(self, value: Any, weight: Weight) -> float | None:
        """The bytes of a value that is one block of data; None for any other value."""
        block = _tensor_block(value, weight) or _array_block(value)
        if block is None:
            return _table_size(value)
        key, size = block
        if key in self._seen:
            return 0
        self._seen.add(key)
        if size >= values.SHARED_FROM:
            weight.shared += size
        return size


def _tensor_block(value: Any, weight: Weight) -> tuple[object, int] | None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if value.device.type not in ("cpu", "meta"):
        weight.devices.add(str(value.device))
    try:
        storage = value.untyped_storage()
        return (str(value.device), storage.data_ptr()), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # sparse, or a kind without memory of its own
        return (str(value.device), id(value)), value.numel() * value.element_size()


def _array_block(value: Any) -> tuple[object, int] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return None
    while isinstance(value.base, numpy.ndarray):
        value = value.base
    return ("array", value.ctypes.data), value.nbytes


def _table_size(value: Any) -> float | None:
    """The bytes of a table or column of pandas."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, (pandas.DataFrame, pandas.Series, pandas.Index)):
        return None
    used = value.memory_usage()
    return float(used.sum() if isinstance(value, pandas.DataFrame) else used)


def _own_size(value: object) -> int:
    if isinstance(value, _WHOLE):
        return 0
    try:
        return sys.getsizeof(value)
    except Exception:  # any class may define its size, and do so wrongly
        return 0


def _parts(value: Any) -> tuple[Iterable[tuple[str, Any]], float]:
    """Some of the parts of a value, with the step to each, and how many each stands for."""
    if isinstance(value, dict):
        some, share = _some(value.items())
        keys = (("", key) for key, _ in some)
        return (*keys, *((f"[{key!r}]", part) for key, part in some)), share
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        some, share = _some(value)
        return ((f"[{index}]", part) for index, part in enumerate(some)), share
    if isinstance(value, _WHOLE):
        return (), 1
    slots = (name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name))
    attributes = {
        **{name: getattr(value, name) for name in slots},
        **getattr(value, "__dict__", {}),
    }
    return ((f".{name}", part) for name, part in attributes.items()), 1


def _some(container: Any) -> tuple[list[Any], float]:
    if len(container) <= _ALIKE:
        return list(container), 1
    some = [part for _, part in zip(range(_ALIKE), container)]  # noqa: B905 - that is the point
    return some, len(container) / _ALIKE


def _slots(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return (name for name in names if name not in ("__dict__", "__weakref__"))
