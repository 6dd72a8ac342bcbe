"""What DistributedDataParallel and its reducer call in C++, led through Python to be traced.

They call a process group's methods from C++, where no wrapper of a method is met. A group of a
class made in Python is called in Python from there too: so each reducer gets one that passes on
what it is asked to the group it had, whose methods are wrapped. All else stays DDP's own, such as
who divides and by what, so gradients are the same to the bit, and a communication hook of the
user's is registered and run as ever. (A hook of ours would be a second one, which DDP refuses, and
torch's `allreduce_hook` divides where the reducer multiplies by the reciprocal: other bits at three
ranks.) The public functions here have the names that a timeline shows.
"""

from __future__ import annotations

import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup, Work
    from torch.nn.parallel import DistributedDataParallel

# A reducer keeps the C++ half of its group alive; the Python half lives here as long as the model.
_groups: weakref.WeakKeyDictionary[DistributedDataParallel, ProcessGroup] = (
    weakref.WeakKeyDictionary()
)


def install(*, late: bool = False) -> None:
    """Lead every reducer through Python; those already made too, if this comes `late`."""
    from torch.nn.parallel import DistributedDataParallel

    make_reducer: Any = DistributedDataParallel._ddp_init_helper

    @functools.wraps(make_reducer)
    def make_and_lead(model: Any, *args: Any, **kwargs: Any) -> None:
        make_reducer(model, *args, **kwargs)
        _lead(model)

    DistributedDataParallel._ddp_init_helper = make_and_lead  # type: ignore[method-assign,assignment]
    _lead_broadcasts()
    if late:
        for found in gc.get_objects():
            if issubclass(type(found), DistributedDataParallel) and hasattr(found, "reducer"):
                _lead(found)


def _lead(model: DistributedDataParallel) -> None:
    _groups[model] = _class_of_groups()(model.process_group, reducers=True)
    model.reducer._update_process_group(_groups[model])


def _lead_broadcasts() -> None:
    """Lead what brings parameters and buffers from one rank to the others."""
    import torch.distributed

    dist: Any = torch.distributed
    original = dist._broadcast_coalesced

    def broadcast(group: Any, *args: Any, **kwargs: Any) -> None:
        original(_class_of_groups()(group, reducers=False), *args, **kwargs)

    def broadcast_first(*args: Any, **kwargs: Any) -> None:
        dist._broadcast_coalesced = _never_compiled(broadcast)
        broadcast(*args, **kwargs)

    dist._broadcast_coalesced = broadcast_first


@functools.cache
def _class_of_groups() -> Any:
    from torch.distributed import ProcessGroup

    class PassesOn(ProcessGroup):
        """A group with the methods that a reducer calls."""

        def __init__(self, group: Any, *, reducers: bool) -> None:
            super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
            self.group, self.reducers = group, reducers

        allreduce = _never_compiled(_allreduce)
        broadcast = _never_compiled(_broadcast)

    return PassesOn


def _never_compiled(function: Callable[..., Any]) -> Any:
    """Keep the compiler out of what a compiled model's forward pass calls.

    This loads the compiler, as making a model does: no sooner than that.
    """
    import torch

    disable: Any = torch.compiler.disable
    return disable(function)


def _allreduce(self: Any, tensors: list[Any], options: Any) -> Work:
    gradients = tensors[0].is_floating_point() or tensors[0].is_complex()
    reduce = all_reduce_ddp_bucket if gradients else all_reduce_ddp_used_parameters
    return reduce(self.group, tensors[0], options)


def _broadcast(self: Any, tensors: list[Any], options: Any) -> Work:
    broadcast = broadcast_ddp_buckets if self.reducers else broadcast_model
    return broadcast(self.group, tensors[0], options)


def all_reduce_ddp_bucket(group: ProcessGroup, tensor: Any, options: Any) -> Work:
    """Sum one bucket of gradients."""
    return group.allreduce([tensor], options)


def all_reduce_ddp_used_parameters(group: ProcessGroup, tensor: Any, options: Any) -> Work:
    """Learn which parameters any rank has used, for `find_unused_parameters`."""
    return group.allreduce([tensor], options)


def broadcast_ddp_buckets(group: ProcessGroup, tensor: Any, options: Any) -> Work:
    """Agree on the buckets that are made anew after the first backward pass."""
    return group.broadcast([tensor], options)


def broadcast_model(group: ProcessGroup, tensor: Any, options: Any) -> Work:
    """Bring parameters to the ranks when the model is made, buffers before each forward pass."""
    return group.broadcast([tensor], options)
