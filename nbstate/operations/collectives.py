"""Collectives over nested structures of tensors, and over any objects."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from nbstate.operations.checks import check
from nbstate.operations.nested import children, map_tensors, rebuilt
from nbstate.state import PartialState, xla

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbstate.state.facts import ProcessFacts


def gather(tensor: Any, *, as_list: bool = False) -> Any:
    """Every rank's tensors, joined along the first dimension in rank order, on every rank.

    Parameters
    ----------
    tensor : Tensor or nested structure
        Of the same shape on all ranks. A tensor without dimensions counts as one of length 1.
    as_list : bool
        Give a list with each rank's tensor instead of joining them; shapes may differ.

    Returns
    -------
    Tensor or nested structure
        On the device of the input, without gradients.

    Raises
    ------
    TypeError
        Something in it is no tensor.
    DistributedOperationException
        In debug mode: shapes or structures differ; raised on all ranks.

    Examples
    --------
    >>> def ranks():
    ...     return gather(torch.tensor([PartialState().process_index])).tolist()
    >>> debug_launcher(ranks)
    RankResults([[0, 1], [0, 1]])
    """
    facts = _facts()
    map_tensors(lambda each: each, tensor, "gather")
    check(facts, "gather", tensor, "any" if as_list else "equal")
    collect = functools.partial(_collect_uneven if as_list else _collect, facts)
    if as_list:
        return map_tensors(collect, tensor)
    return map_tensors(lambda each: torch.cat(collect(each if each.dim() else each[None])), tensor)


def gather_object(object: Any, *, flatten: bool = True) -> list[Any]:  # noqa: A002, Accelerate's name
    """Every rank's object, on every rank.

    Parameters
    ----------
    object : any picklable object
        One from each rank.
    flatten : bool
        Where every rank gives a list, join the lists in rank order, one level deep. False always
        gives one element for each rank, untouched.

    Returns
    -------
    list
        One element for each rank, or the joined lists.

    Examples
    --------
    >>> debug_launcher(lambda: gather_object({"rank": PartialState().process_index}))[0]
    [{'rank': 0}, {'rank': 1}]
    >>> debug_launcher(lambda: gather_object(["a", "b"]))[0]
    ['a', 'b', 'a', 'b']
    """
    facts = _facts()
    check(facts, "gather_object", None)
    objects = facts.exchange(object)
    if flatten and all(isinstance(each, list) for each in objects):
        return [item for each in objects for item in each]
    return objects


def gather_in_order(part: Any) -> Any:
    """Every rank's results in the order of the split input; see `PartialState.gather_in_order`.

    Examples
    --------
    >>> def double(numbers):
    ...     with PartialState().split_between_processes(numbers) as part:
    ...         return gather_in_order([2 * number for number in part])
    >>> debug_launcher(double, ([1, 2, 3],))
    RankResults([[2, 4, 6], [2, 4, 6]])
    """
    return PartialState().gather_in_order(part)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """The tensors of one rank, on every rank; the input is not changed.

    Parameters
    ----------
    tensor : Tensor or nested structure
        Of the same shape and type on all ranks.
    from_process : int
        The rank whose tensors are sent.

    Raises
    ------
    DistributedOperationException
        In debug mode: shapes or structures differ; raised on all ranks.

    Examples
    --------
    >>> def from_the_last():
    ...     rank = torch.tensor(PartialState().process_index)
    ...     return broadcast({"rank": rank}, from_process=1)["rank"].item()
    >>> debug_launcher(from_the_last)
    RankResults([1, 1])
    """
    facts = _facts()
    _check_rank(facts, from_process)
    map_tensors(lambda each: each, tensor, "broadcast")
    check(facts, "broadcast", tensor)
    if facts.place.world_size == 1:
        return tensor

    def send(each: torch.Tensor) -> torch.Tensor:
        wire = _on_wire(facts, each).clone()
        if facts.kind == "xla":
            xla.broadcast(wire, from_process)
        else:
            dist.broadcast(wire, from_process)
        return wire.to(each.device)

    return map_tensors(send, tensor)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """The objects of one rank, put into the given list on every rank.

    Parameters
    ----------
    object_list : list
        Equally long on all ranks; filled in place and returned.
    from_process : int
        The rank whose objects are sent.

    Examples
    --------
    >>> def name_the_run():
    ...     return broadcast_object_list([f"run of rank {PartialState().process_index}"])
    >>> debug_launcher(name_the_run)
    RankResults([['run of rank 0'], ['run of rank 0']])
    """
    facts = _facts()
    _check_rank(facts, from_process)
    check(facts, "broadcast_object_list", None)
    sent = facts.exchange(object_list if facts.place.rank == from_process else None)
    object_list[:] = sent[from_process]
    return object_list


def reduce(
    tensor: Any, reduction: Literal["mean", "sum", "none"] = "mean", scale: float = 1.0
) -> Any:
    """The mean or the sum of every rank's tensors, on every rank; the input is not changed.

    Parameters
    ----------
    tensor : Tensor or nested structure
        Of the same shape and type on all ranks.
    reduction : {'mean', 'sum', 'none'}
        'none' only scales.
    scale : float
        A factor for the result.

    Returns
    -------
    Tensor or nested structure
        The mean of whole numbers is a floating point tensor.

    Examples
    --------
    >>> def mean_rank():
    ...     return reduce(torch.tensor(PartialState().process_index)).item()
    >>> debug_launcher(mean_rank)
    RankResults([0.5, 0.5])
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction={reduction!r} must be 'mean', 'sum' or 'none'")
    facts = _facts()
    map_tensors(lambda each: each, tensor, "reduce")
    check(facts, "reduce", tensor)

    def combine(each: torch.Tensor) -> torch.Tensor:
        result = each.detach()
        if reduction != "none" and facts.place.world_size > 1:
            wire = _on_wire(facts, result).clone()
            if facts.kind == "xla":
                xla.sum_up(wire)
            else:
                dist.all_reduce(wire)
            result = wire.to(each.device)
        if reduction == "mean":
            result = result / facts.place.world_size
        return result if scale == 1.0 else result * scale

    return map_tensors(combine, tensor)


def pad_across_processes(
    tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
) -> Any:
    """The tensors, padded along one dimension to the length of the longest among the ranks.

    Parameters
    ----------
    tensor : Tensor or nested structure
        Tensors with no such dimension are left as they are; so are other objects.
    dim : int
        The dimension to pad.
    pad_index : int
        The value to pad with.
    pad_first : bool
        Pad at the beginning.

    Examples
    --------
    >>> def padded():
    ...     longer_on_rank_1 = torch.ones(1 + PartialState().process_index)
    ...     return pad_across_processes(longer_on_rank_1).tolist()
    >>> debug_launcher(padded)
    RankResults([[1.0, 0.0], [1.0, 1.0]])
    """
    facts = _facts()
    check(facts, "pad_across_processes", tensor, "dimensions")

    def pad(each: torch.Tensor) -> torch.Tensor:
        if not -each.dim() <= dim < each.dim():
            return each
        length = each.shape[dim]
        missing = max(facts.exchange(length)) - length
        if missing == 0:
            return each
        shape = list(each.shape)
        shape[dim] = missing
        padding = each.new_full(shape, pad_index)
        return torch.cat([padding, each] if pad_first else [each, padding], dim=dim)

    return map_tensors(pad, tensor)


def send_to_device(
    tensor: Any,
    device: str | int | torch.device,
    non_blocking: bool = False,
    skip_keys: str | Sequence[str] | None = None,
) -> Any:
    """The structure with everything that can move on a device.

    Parameters
    ----------
    tensor : nested structure
        Tensors and other objects with a method ``to`` are moved, the rest stays as it is.
    device : str, int or torch.device
        Where to.
    non_blocking : bool
        Do not wait for copies from pinned memory.
    skip_keys : str or sequence of str, optional
        Keys of mappings whose values stay where they are.

    Examples
    --------
    >>> batch = {"x": torch.ones(2), "names": ["a", "b"]}
    >>> moved = send_to_device(batch, "meta")
    >>> moved["x"].device.type, moved["names"]
    ('meta', ['a', 'b'])
    """
    skipped = {skip_keys} if isinstance(skip_keys, str) else set(skip_keys or ())
    if isinstance(tensor, torch.Tensor) or hasattr(tensor, "to"):
        return _moved(tensor, device, non_blocking)
    parts = children(tensor)
    if parts is None:
        return tensor
    kept = {f"[{key!r}]" for key in skipped}
    return rebuilt(
        tensor,
        [
            part if step in kept else send_to_device(part, device, non_blocking, skip_keys)
            for step, part in parts
        ],
    )


def _moved(thing: Any, device: str | int | torch.device, non_blocking: bool) -> Any:
    try:
        return thing.to(device, non_blocking=non_blocking)
    except TypeError:  # a `to` of its own, such as BatchEncoding's, may take the device only
        return thing.to(device)


def _facts() -> ProcessFacts:
    return PartialState._joined()


def _check_rank(facts: ProcessFacts, rank: int) -> None:
    if not 0 <= rank < facts.place.world_size:
        raise ValueError(
            f"from_process={rank} must be a rank: 0 to {facts.place.world_size - 1} here"
        )


def _on_wire(facts: ProcessFacts, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor where the backend takes it: gloo and MPI carry the CPU's, others the device's."""
    on_cpu = facts.backend in {"gloo", "mpi"}
    return tensor.detach().to("cpu" if on_cpu else facts.device).contiguous()


def _collect(facts: ProcessFacts, tensor: torch.Tensor) -> list[torch.Tensor]:
    world_size = facts.place.world_size
    if world_size == 1:
        return [tensor.detach()]
    wire = _on_wire(facts, tensor)
    if facts.kind == "xla":
        return list(xla.gather(wire).chunk(world_size))
    gathered = [torch.empty_like(wire) for _ in range(world_size)]
    dist.all_gather(gathered, wire)
    return [each.to(tensor.device) for each in gathered]


def _collect_uneven(facts: ProcessFacts, tensor: torch.Tensor) -> list[torch.Tensor]:
    shapes = facts.exchange(tuple(tensor.shape))
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = tensor.detach().reshape(-1)
    padded = torch.cat([flat, flat.new_zeros(max(sizes) - flat.numel())])
    return [
        each[:size].reshape(shape)
        for each, size, shape in zip(_collect(facts, padded), sizes, shapes, strict=True)
    ]
