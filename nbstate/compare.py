"""Whether all ranks have the same: the first thing that differs, between whom, by how much."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any


def assert_same(value: Any, name: str = "") -> None:
    """Check that a model, a tensor or anything made of tensors is equal on every rank.

    To be called on all ranks. Equal means bit for bit.

    Parameters
    ----------
    value
        A module (its parameters and buffers), a tensor, an array, a dict or list of these, or any
        other value, which is compared by its text.
    name
        What to call it in the error.

    Raises
    ------
    AssertionError
        On every rank alike: names the first part that differs, the ranks, and by how much.

    Examples
    --------
    >>> assert_same({"lr": 0.1})
    """
    from nbstate.operations import gather_object
    from nbstate.state import PartialState

    if PartialState().num_processes == 1:
        return
    parts = dict(_parts(value, name))
    digests = gather_object([{path: _digest(part) for path, part in parts.items()}])
    paths = list(dict.fromkeys(path for ranks_digests in digests for path in ranks_digests))
    for path in paths:
        found = [ranks_digests.get(path) for ranks_digests in digests]
        odd = next((rank for rank, digest in enumerate(found) if digest != found[0]), None)
        if odd is not None:
            rows = gather_object([_plain(parts[path]) if path in parts else None])
            raise AssertionError(f"{path or 'the value'} differs {_told(rows, odd)}")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and other leaves, each with a name that the user knows it by."""
    import torch

    if isinstance(value, torch.nn.Module):
        for name, tensor in value.state_dict().items():
            yield _joined(path, name), tensor
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _parts(part, f"{path}[{index}]")
    else:
        yield path, value


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _plain(part: Any) -> Any:
    """Return a leaf as it is compared: a tensor on the CPU, or its text."""
    import torch

    if hasattr(part, "__array_interface__"):
        try:
            part = torch.tensor(part)
        except TypeError:  # torch has no such numbers, or it holds text
            return f"{part.dtype}{list(part.shape)} {part.tolist()}"
    return part.detach().cpu() if isinstance(part, torch.Tensor) else repr(part)


def _digest(part: Any) -> str:
    import torch

    tensor = _plain(part)
    if not isinstance(tensor, torch.Tensor):
        return str(tensor)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.blake2b(raw).hexdigest()}"


def _told(rows: list[Any], odd: int) -> str:
    import torch

    first, other = rows[0], rows[odd]
    between = f"between rank 0 and rank {odd}"
    if first is None or other is None:
        return f"{between}: only rank {odd if first is None else 0} has it"
    if not isinstance(first, torch.Tensor) or not isinstance(other, torch.Tensor):
        return f"{between}: {first} and {other}"
    if first.shape != other.shape or first.dtype != other.dtype:
        return f"{between}: {_kind(first)} and {_kind(other)}"
    apart = (first != other) & ~(first.isnan() & other.isnan())
    if not apart.any():
        return f"{between}: in bits only, such as the sign of a zero"
    widest = torch.complex128 if first.is_complex() else torch.float64
    gap = (first.to(widest) - other.to(widest)).abs()[apart].max().item()
    share = 100 * apart.double().mean().item()
    return f"{between}: by {gap:.3g} at most, in {share:.0f} % of its elements"


def _kind(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
