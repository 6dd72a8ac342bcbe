"""What torch's functional collectives call in C++, led through Python to be traced.

Layers of tensor parallel models and all of DTensor use them. They are operators, so a kernel of
ours comes before torch's own: below autograd and the compiler, which see the operator that they
know. It runs torch's kernel on a group that passes on what it is asked to the one that was meant,
whose methods are wrapped, as `nbstate.rank.reducer` does. That group is found by a name of its own,
for this call only: nobody else meets it. A kernel's frame has its operator's name, which a timeline
shows where no function of torch's was called.
"""

from __future__ import annotations

import functools
from itertools import count
from types import FunctionType
from typing import TYPE_CHECKING, Any

from nbstate.rank.trace import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable

_STEMS = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
)
_ENDS = ("", "_", "_coalesced", "_coalesced_", "_out")
_NAMES = tuple(stem + end for stem in _STEMS for end in _ENDS)  # where this torch has them
_OPERATORS = {
    "_c10d_functional": _NAMES,
    "_c10d_functional_autograd": _NAMES,
    "_dtensor": ("shard_dim_alltoall",),
}
_DEVICES = ("CPU", "CUDA", "XPU")

_libraries: list[Any] = []  # a kernel is there as long as its library
_numbers = count()


def install() -> None:
    """Have kernels of ours come before those of all functional collectives of this torch."""
    import torch

    make_library: Any = torch.library.Library
    for namespace, names in _OPERATORS.items():
        library = make_library(namespace, "IMPL")
        _libraries.append(library)
        for name in names:
            if hasattr(getattr(torch.ops, namespace), name):
                operator = getattr(getattr(torch.ops, namespace), name).default
                for device in _DEVICES:
                    library.impl(name, _kernel(name, operator), device)


def _kernel(name: str, operator: Any) -> Callable[..., Any]:
    import torch
    import torch._C._distributed_c10d

    c10d: Any = torch._C._distributed_c10d
    torchs = functools.partial(operator._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)
    place = [argument.name for argument in operator._schema.arguments].index("group_name")

    def kernel(tensor: Any, *rest: Any, **kwargs: Any) -> Any:
        given, led = [tensor, *rest], f"led by nbstate {next(_numbers)}"
        group: Any = given[place]
        if isinstance(group, str):
            group = c10d._resolve_process_group(group)
        passes_on = _class_of_groups()(group)  # lives as long as this call
        c10d._register_process_group(led, passes_on)
        given[place] = led
        try:
            return torchs(*given, **kwargs)
        finally:
            c10d._unregister_process_group(led)

    code = kernel.__code__.replace(co_name=name)
    return FunctionType(code, kernel.__globals__, name, None, kernel.__closure__)


@functools.cache
def _class_of_groups() -> Any:
    from torch.distributed import ProcessGroup

    class PassesOn(ProcessGroup):
        """A group that asks another; what is not called in Python goes to the other's backends."""

        def __init__(self, group: Any) -> None:
            super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
            self.group = group
            for device in group._device_types:
                backend = group._get_backend(device)
                kinds = ProcessGroup.BackendType.__members__
                kind = kinds.get(backend.name().upper(), ProcessGroup.BackendType.CUSTOM)
                self._register_backend(device, kind, backend)

    for method in METHODS:
        if hasattr(ProcessGroup, method):
            setattr(PassesOn, method, _passing_on(method))
    return PassesOn


def _passing_on(method: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.group, method)(*args)
