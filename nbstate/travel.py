"""Functions and classes on their way to ranks that stay, and from any rank back to the kernel.

What the ranks have had since the fork travels by name. A function or class of a later cell travels
by value, along with the functions and classes of the notebook that it uses; everything else that it
reads by name, the rank's own variables answer.

A class that came from the kernel goes back as what it is there, by the number that cloudpickle gave
it: by value it would change the kernel's own. cloudpickle does not keep classes alive, so who sends
them holds on to `classes_here()`.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from nbstate import values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


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
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            number = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(obj)
            if number in _kernels.classes:
                return _class_of_kernel, (number,)
        return super().reducer_override(obj)


@dataclass
class _Kernels:
    """What a rank knows the kernel to have as well.

    `names` are functions and classes of the notebook, as `values.names_in_main` returned them
    before the fork, `classes` the numbers of those that were here at the fork or came later.
    """

    names: Mapping[int, str]
    classes: frozenset[str]


_kernels = _Kernels({}, frozenset())


def begin(names: Mapping[int, str]) -> None:
    """Be a rank: what is here at this moment the kernel has as well."""
    _kernels.names = names
    _kernels.classes = frozenset(classes_here())


def load(payload: bytes, buffers: Sequence[Any]) -> Any:
    """Rebuild in a rank what was pickled in the kernel; the classes that it brings are known."""
    before = classes_here()
    value = values.load(payload, buffers)
    _kernels.classes |= classes_here().keys() - before.keys()
    return value


def classes_here() -> dict[str, Any]:
    """Return the classes that have travelled by value, by the number that they travel under."""
    numbered = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.valuerefs()
    return {ref.key: found for ref in numbered if (found := ref()) is not None}


def dump_back(value: object, what: str) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle `value` in a rank, for the kernel.

    Raises
    ------
    UnpicklableError
        Names the path to the part that cannot travel.
    """
    return _dump(_PicklerBack, value, what, _kernels.names)


def _class_of_kernel(number: str) -> type:
    found: type = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[number]
    return found


def try_to_load(payload: bytes, buffers: Sequence[Any]) -> None:
    """Rebuild what was pickled in this very process, whose classes stay as they are."""
    _Trial(io.BytesIO(payload), buffers=buffers).load()


class _Trial(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _left_alone if name == "_class_setstate" else found


def _left_alone(kind: type, _state: object) -> type:
    return kind


def dump(
    value: object, what: str, by_reference: Mapping[int, str]
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle `value` for a rank, as `values.dump` does for the kernel.

    Raises
    ------
    UnpicklableError
        Names the path to the part that cannot travel.
    """
    return _dump(_Pickler, value, what, by_reference)


def _dump(
    kind: type[values._Pickler], value: object, what: str, by_reference: Mapping[int, str]
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    pickler = kind(file := io.BytesIO(), by_reference, buffer_callback=buffers.append)
    try:
        pickler.dump(value)
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
