"""Functions and classes on their way to ranks that stay, and back.

What the ranks have had since the fork travels by name. A function or class of a later cell travels
by value, along with the functions and classes of the notebook that it uses; everything else that it
reads by name, the rank's own variables answer. A class that came from the kernel goes back as what
it is there: by value it would change the kernel's own.
"""

from __future__ import annotations

import io
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from nbstate import values

if TYPE_CHECKING:
    import pickle
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet


class _Pickler(values._Pickler):
    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if (
            isinstance(obj, FunctionType)
            and isinstance(reduced, tuple)
            and obj.__globals__ is _names_of_notebook()
            and len(reduced) > 3
        ):
            return _over_the_ranks_names(reduced)
        return reduced


class _PicklerBack(values._Pickler):
    known: AbstractSet[str] = frozenset()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            number = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(obj)
            if number in self.known:
                return _class_of_kernel, (number,)
        return super().reducer_override(obj)


def classes_here() -> AbstractSet[str]:
    """Return the numbers that cloudpickle has given to the classes that travelled by value."""
    return frozenset(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID)


def dump_back(
    value: object, what: str, by_reference: Mapping[int, str], known: AbstractSet[str]
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle `value` in a rank, for the kernel.

    Parameters
    ----------
    known
        Numbers of the classes that came from the kernel.

    Raises
    ------
    UnpicklableError
        Names the path to the part that cannot travel.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickler = _PicklerBack(file := io.BytesIO(), by_reference, buffer_callback=buffers.append)
    pickler.known = known
    try:
        pickler.dump(value)
    except Exception as error:
        raise values.UnpicklableError(values._culprit(value, what, error)) from error
    return file.getvalue(), buffers


def _class_of_kernel(number: str) -> type:
    found: type = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[number]
    return found


def dump(
    value: object, what: str, by_reference: Mapping[int, str]
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle `value` for a rank, as `values.dump` does for the kernel.

    Raises
    ------
    UnpicklableError
        Names the path to the part that cannot travel.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    try:
        _Pickler(file, by_reference, buffer_callback=buffers.append).dump(value)
    except Exception as error:
        raise values.UnpicklableError(values._culprit(value, what, error)) from error
    return file.getvalue(), buffers


class _RanksNames:
    """Stands for the namespace of whichever process it arrives in."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return _names_of_notebook, ()


def _over_the_ranks_names(reduced: Any) -> Any:
    # What cloudpickle makes of a function: make it from (code, globals, ...), then set its state.
    make, (code, _, *more), (attributes, slots), *rest = reduced
    used = {name: part for name, part in slots["__globals__"].items() if _is_code(part)}
    return make, (code, _RanksNames(), *more), (attributes, {**slots, "__globals__": used}), *rest


def _is_code(part: object) -> bool:
    if isinstance(part, ModuleType):
        return True
    return isinstance(part, (type, FunctionType)) and part.__module__ == "__main__"


def _names_of_notebook() -> dict[str, Any]:
    return vars(sys.modules["__main__"])
