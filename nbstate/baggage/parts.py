"""The values that a function takes along, each by the name that the user gave it.

Functions and classes of the notebook are looked through in turn, since they travel by value. What
can be imported travels by its name and takes nothing along.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbstate.rank.call import Call

Part = tuple[str, Any]


def parts_of_call(call: Call) -> Iterator[Part]:
    """Yield each argument, then what the function itself takes along."""
    for index, value in enumerate(call.args):
        yield f"args[{index}]", value
    for name, value in call.kwargs.items():
        yield f"kwargs[{name!r}]", value
    yield from parts_of_function(call.function)


def parts_of_function(function: Any) -> Iterator[Part]:
    """Yield closure and global variables, defaults, a bound self, the arguments of a partial."""
    for _, parts in _looked_through(function):
        yield from parts


def reads(function: Any) -> Iterator[Part]:
    """Yield each name that the function, and what it uses of the notebook, reads or imports.

    With the value of a global variable, and None for names of attributes and modules.
    """
    for code, _ in _looked_through(function):
        if isinstance(code, types.FunctionType):
            for name in _names(code.__code__):
                yield name, code.__globals__.get(name)


def _looked_through(function: Any) -> Iterator[tuple[Any, list[Part]]]:
    """The function and everything of the notebook that it uses, each with what it takes along."""
    seen: set[int] = set()
    waiting = [("", function)]
    while waiting:
        user, code = waiting.pop()
        parts = []
        for name, value in _own_parts(code):
            if id(value) in seen or _can_be_imported(value):
                continue
            seen.add(id(value))
            if _is_code(value):
                same = isinstance(code, (functools.partial, types.MethodType))
                waiting.append((user if same else f" (used by {_name(value)})", value))
            else:
                parts.append((name + user, value))
        yield code, parts


def _own_parts(code: Any) -> Iterator[Part]:
    if isinstance(code, functools.partial):
        yield "function of the partial", code.func
        yield from ((f"partial argument {index}", value) for index, value in enumerate(code.args))
        yield from ((f"partial argument {name!r}", value) for name, value in code.keywords.items())
    elif isinstance(code, types.MethodType):
        if type(code.__self__).__module__.startswith(("IPython.", "ipykernel.")):
            return  # get_ipython and its like: the shell is everywhere, and is not taken along
        yield f"the object of {_name(code)}", code.__self__
        yield "its method", code.__func__
    elif isinstance(code, type):
        if _travels_by_value(code):
            yield from ((f"class variable {name!r}", value) for name, value in _variables(code))
    elif isinstance(code, types.FunctionType):
        if _travels_by_value(code):
            yield from _closure(code)
            yield from _defaults(code)
            yield from _globals(code)
    elif not _can_be_imported(code):
        yield "the object that is called", code
        yield "its class", type(code)


def _can_be_imported(value: Any) -> bool:
    if issubclass(type(value), types.ModuleType):  # unlike isinstance, it asks the value nothing
        return True
    try:
        module, name = value.__module__, value.__qualname__
    except Exception:  # it has none, or is a proxy that refuses to be looked at
        return False
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    return getattr(sys.modules.get(module), name, None) is value


def _is_code(value: object) -> bool:
    kinds = (type, types.FunctionType, types.MethodType, functools.partial)
    return issubclass(type(value), kinds)


def _travels_by_value(code: Any) -> bool:
    return getattr(code, "__module__", None) == "__main__" or "<locals>" in code.__qualname__


def _name(code: Any) -> str:
    return getattr(code, "__name__", None) or type(code).__name__


def _variables(of_class: type) -> Iterator[Part]:
    for name, value in vars(of_class).items():
        if isinstance(value, (staticmethod, classmethod)):
            yield name, value.__func__
        elif isinstance(value, property):
            yield from ((name, part) for part in (value.fget, value.fset) if part is not None)
        elif not name.startswith("__") or _is_code(value):
            yield name, value


def _closure(function: types.FunctionType) -> Iterator[Part]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield f"closure variable {name!r}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _defaults(function: types.FunctionType) -> Iterator[Part]:
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    named = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    for name, value in {**named, **(function.__kwdefaults__ or {})}.items():
        yield f"default of {name!r}", value


def _globals(function: types.FunctionType) -> Iterator[Part]:
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]


@functools.lru_cache(maxsize=256)  # a function is often launched again as it is
def _global_names(code: types.CodeType) -> dict[str, None]:
    """The globals read by the code and by what is defined inside it, in order, without repeats."""
    names: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names[instruction.argval] = None
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _global_names(constant)
    return names


def _names(code: types.CodeType) -> Iterator[str]:
    """Every name that the code, and what is defined inside it, looks up or imports."""
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)
