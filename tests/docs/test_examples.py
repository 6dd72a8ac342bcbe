"""Every public name has an example, and every example in the package does what it shows.

An example is a cell of a real kernel. One of a method goes on from that of its class.
"""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nbstate
from tests.kernels import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the rooms of the package say to each other: public in Python's sense only.
_TOLD = {"format_msg", "title"}
BETWEEN_ROOMS = {
    "Job": {"changed", "give_up", "heard", "interruptible", "join", "listen"}
    | {
        "may_restart",
        "note",
        "note_when_done",
        "over_within",
        "ranks_ended",
        "restart_together",
        "shown_by",
        "start",
        "started",
    }
    | {"stopping", "take_places", "take_result", "tell", "unlisten", "wait_until_shown"},
    "JobStoppedError": _TOLD,
    "LaunchOptions": {"from_keywords"},
    "RankError": _TOLD,
    "RankFailure": {"as_dict"},
    "RankTimeoutError": _TOLD,
    "Session": {"complete", "describe", "tell"},
}
FRESH = "%reset -f\nfrom nbstate import *\nimport nbstate, torch\nPartialState.reset()"
OVER = """
if isinstance(globals().get("session"), nbstate.Session):
    session.close()
for left in nbstate.jobs():
    left.kill()
    left.join()
"""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _public() -> Iterator[tuple[str, Any]]:
    """Each public name and method with its object; an inherited method once, where it begins."""
    seen = set()
    things = {name: getattr(nbstate, name) for name in nbstate.__all__}
    depth = {name: len(getattr(thing, "__mro__", ())) for name, thing in things.items()}
    # A class comes before those that inherit from it, PartialState before AcceleratorState.
    for name in sorted(things, key=lambda name: (name != "PartialState", depth[name], name)):
        thing = things[name]
        yield name, thing
        for member, function in _functions_of(thing):
            if function not in seen and member not in BETWEEN_ROOMS.get(name, ()):
                seen.add(function)
                yield f"{name}.{member}", function


def _functions_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods of a class that are nbstate's own, or the functions of a module."""
    if not inspect.isclass(thing) and not inspect.ismodule(thing):
        return
    home = thing.__name__ if inspect.ismodule(thing) else "nbstate."
    for name, value in inspect.getmembers(thing, inspect.isroutine):
        function = getattr(value, "__func__", value)
        if name[0] != "_" and str(getattr(function, "__module__", "")).startswith(home):
            yield name, function


def _others() -> Iterator[tuple[str, str]]:
    """The docstring of everything else that has an example, by module and name."""
    known = set(map(_place, PUBLIC.values()))
    root = Path(nbstate.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        for name, node in _documented(ast.parse(path.read_text())):
            text = ast.get_docstring(node) or ""
            if ">>> " in text and f"{module}:{name}" not in known:
                yield f"{module}:{name}", text


def _place(thing: Any) -> str:
    whole = inspect.ismodule(thing)
    return f"{thing.__name__}:" if whole else f"{thing.__module__}:{thing.__qualname__}"


def _documented(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    yield name, node
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _documented(part, f"{name}.{part.name}".removeprefix("."))


def _examples(text: str | None) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(text or "")


PUBLIC = dict(_public())
OTHERS = dict(_others())


@pytest.fixture(scope="module")
def one_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("docs"), env={"NBSTATE_VIEW": "silent"}) as kernel:
        kernel.run(FRESH)
        kernel.run("import gc; gc.freeze()")  # or each %reset would look through all of torch
        yield kernel


@pytest.fixture
def quiet(one_kernel: Kernel) -> Iterator[Kernel]:
    """Give a kernel that shows no views, as if fresh."""
    one_kernel.run(FRESH)
    yield one_kernel
    one_kernel.run(OVER)


def _run(kernel: Kernel, examples: list[doctest.Example]) -> None:
    for example in examples:
        cell = kernel.run(example.source)
        shown = cell.stdout + (f"{cell.result}\n" if cell.result is not None else "")
        wanted, flags = example.want, FLAGS
        if example.exc_msg is not None and cell.error is not None:
            shown, wanted = f"{cell.error.ename}: {cell.error.evalue}\n", example.exc_msg
        elif cell.error is not None:
            shown = cell.error.traceback
        assert doctest.OutputChecker().check_output(wanted, shown, flags), (
            f"In [ ]: {example.source}\nexpected: {wanted}\nshown: {shown}"
        )


def test_every_public_name_has_an_example() -> None:
    assert [name for name, thing in PUBLIC.items() if not _examples(thing.__doc__)] == []


def test_every_attribute_of_a_public_class_is_documented() -> None:
    classes = [thing for thing in PUBLIC.values() if inspect.isclass(thing)]
    assert [
        f"{each.__name__}.{name}"
        for each in classes
        for name, value in inspect.getmembers(each, lambda value: isinstance(value, property))
        if name[0] != "_" and not inspect.getdoc(value)
    ] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_does_what_its_example_shows(name: str, quiet: Kernel) -> None:
    owner, _, member = name.partition(".")
    if member:
        _run(quiet, _examples(PUBLIC[owner].__doc__))
    _run(quiet, _examples(PUBLIC[name].__doc__))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_private_does_what_its_example_shows(name: str, quiet: Kernel) -> None:
    module = name.partition(":")[0]
    quiet.run(f"import importlib; globals().update(vars(importlib.import_module({module!r})))")
    _run(quiet, _examples(OTHERS[name]))
