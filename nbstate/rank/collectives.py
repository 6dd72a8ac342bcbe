"""Which collective a thread is in, read from its frames: what is never asked costs nothing.

A rank that waits for its peers holds no lock of the interpreter, so another thread of it can read
what it waits in: the function, its arguments, the group and the group's own count of calls.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbstate.rank import failure, reducer
from nbstate.wire import Collective

if TYPE_CHECKING:
    from types import FrameType

# What else waits for other ranks here and there, beside the collectives that `failure` knows.
_HOMES = tuple(
    path.replace("/", os.sep)
    for path in ("torch/nn/parallel/distributed.py", "nbstate/state/waiting.py")
)
# What autograd calls in a backward pass.
_BACKWARD = tuple(
    path.replace("/", os.sep)
    for path in (
        "nbstate/rank/reducer.py",
        "nbstate/rank/functional.py",
        "torch/distributed/_functional_collectives.py",
    )
)
# Their names for what goes into the collective on every rank, the likeliest first.
_INPUTS = ("tensor", "input_tensor", "input", "self", "input_list", "output_tensor", "output")
_OBJECTS = ("obj", "object_list", "scatter_object_input_list")


def of_thread(frame: FrameType | None) -> Collective | None:
    """Return the collective that a thread with this innermost frame is in, or None.

    The outermost public function is what the user called; what DistributedDataParallel's reducer
    called is told as its own.
    """
    found = [f for f in failure.walk(frame) if _is_collective(f)]
    return _told(next(filter(_is_of_a_reducer, found), found[-1])) if found else None


def calls() -> int:
    """Return how many collectives of the default group this rank has begun; 0 without a group."""
    group = _default_group()
    return 0 if group is None else _number(group)


def _is_collective(frame: FrameType) -> bool:
    return bool(_name(frame))


def _is_of_a_reducer(frame: FrameType) -> bool:
    return frame.f_code.co_filename == reducer.__file__


def _name(frame: FrameType) -> str:
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    elsewhere = file.endswith(_HOMES) and not function.startswith(("_", "<"))
    return failure.collective_name(file, function) or (function if elsewhere else "")


def _told(frame: FrameType) -> Collective:
    name, where = _name(frame), failure.where_of(frame)
    if not where and frame.f_code.co_filename.endswith(_BACKWARD):
        # An accelerator's backward pass is in a thread of autograd's, for which the main one waits.
        where = failure.where_of(sys._current_frames().get(threading.main_thread().ident or 0))
    if name == "wait_for_everyone":
        return Collective(name, where=where)
    details = _details(frame.f_locals)
    group = frame.f_locals.get("group")
    if not hasattr(group, "size"):
        group = _default_group()
    if group is None or name.endswith("process_group"):
        return Collective(name, details, where=where)
    members = _members(group)
    return Collective(name, details, _group_name(group, members), members, _number(group), where)


def about_to_begin(frame: FrameType, method: str, group: Any, number: int) -> Collective:
    """Return the collective that this frame is about to begin by `method` of a process group."""
    members = _members(group)
    found = of_thread(frame) or Collective(method, where=failure.where_of(frame))
    return replace(found, group=_group_name(group, members), members=members, number=number)


def terms(frame: FrameType | None) -> str:
    """Return what all ranks must agree on beside shapes: the operation and the root rank."""
    found = [f.f_locals for f in failure.walk(frame) if _is_collective(f)]
    operation, root = (next(filter(None, map(of, found)), "") for of in (_operation, _root))
    return f"{operation} {root}"


def is_asynchronous(frame: FrameType | None) -> bool:
    """Tell whether a function of torch was called to return before its collective is over."""
    return any(f.f_locals.get("async_op") is True for f in failure.walk(frame) if _is_collective(f))


def _details(given: dict[str, Any]) -> str:
    torch = sys.modules["torch"]
    tensor = next((given[n] for n in _INPUTS if isinstance(given.get(n), torch.Tensor)), None)
    pickled = any(name in given for name in _OBJECTS)  # what is pickled may differ in length
    shape = "" if tensor is None or pickled else f"of {shape_of(tensor)}"
    return " ".join(filter(None, (_operation(given), shape, _root(given))))


def _operation(given: dict[str, Any]) -> str:
    name = str(given.get("op", "")).rpartition(".")[2]
    return name if name.isidentifier() else ""


def _root(given: dict[str, Any]) -> str:
    for name, word in (("src", "from"), ("dst", "to")):
        if isinstance(given.get(name), int):
            return f"{word} rank {given[name]}"
    return ""


def shape_of(tensor: Any) -> str:
    """Return a tensor's type and shape, such as ``float32[2, 3]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _default_group() -> Any:
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return None if c10d is None or not c10d.is_initialized() else c10d.GroupMember.WORLD


def _members(group: Any) -> tuple[int, ...]:
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    return tuple(c10d.get_process_group_ranks(group))


def _group_name(group: Any, members: tuple[int, ...]) -> str:
    if group is _default_group():
        return "default group"
    return f"group of ranks {', '.join(map(str, members))}"


def _number(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):  # a backend that does not count
        return 0
