"""Weights in files, with the names and the index that Accelerate and transformers read.

model.safetensors                     all of a model, or
model-00001-of-00002.safetensors      ... its parts, none above a size, and
model.safetensors.index.json          which weight is in which part
pytorch_model.bin, ...                the same by `torch.save`
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from nbstate.train import storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
_KINDS = {True: ("model", ".safetensors"), False: ("pytorch_model", ".bin")}


def name(safe: bool, number: int = 0) -> str:
    """What the file of a model is called, by its number in a checkpoint."""
    stem, ending = _KINDS[safe]
    return f"{stem}_{number}{ending}" if number else f"{stem}{ending}"


def write(values: Any, path: Path, *, safe: bool) -> None:
    """Write weights by safetensors, or any object by `torch.save`; as a whole or not at all.

    Raises
    ------
    TypeError
        safetensors takes tensors by name only.
    """
    if not safe:
        with storage.replacing(path) as partial:
            torch.save(values, partial)
        return
    _check_tensors(values)
    groups = list(_same(values))
    kept = {names[0]: _alone(values[names[0]]) for names in groups}
    # What was left out because it is another one by a second name.
    left_out = {other: names[0] for names in groups for other in names[1:]}
    with storage.replacing(path) as partial:
        save_file(kept, partial, metadata={"format": "pt", **left_out})


def write_model(state: Mapping[str, Any], directory: Path, limit: int | str, *, safe: bool) -> None:
    """Write a model's weights in parts of `limit` bytes at most; a larger weight has its own.

    Parts of an earlier model in this directory are deleted.
    """
    directory.mkdir(parents=True, exist_ok=True)
    whole, index = name(safe), f"{name(safe)}.index.json"
    parts = list(_parts(state, size_of(limit), safe))
    stem, ending = _KINDS[safe]
    names = [f"{stem}-{n:05d}-of-{len(parts):05d}{ending}" for n in range(1, len(parts) + 1)]
    names = [whole] if len(parts) == 1 else names
    for part, file in zip(parts, names, strict=True):
        write(part, directory / file, safe=safe)
    if len(parts) > 1:
        places = {weight: file for part, file in zip(parts, names, strict=True) for weight in part}
        size = sum(_bytes(state[names[0]]) for names in _same(state))
        told = {"metadata": {"total_size": size}, "weight_map": places}
        with storage.replacing(directory / index) as partial:
            partial.write_text(json.dumps(told, indent=2) + "\n")
    pattern = rf"{stem}(-\d{{5}}-of-\d{{5}})?{re.escape(ending)}|{re.escape(index)}"
    current = {*names, index} if len(parts) > 1 else set(names)
    for found in directory.iterdir():
        if re.fullmatch(pattern, found.name) and found.name not in current:
            found.unlink()


def size_of(given: int | str) -> int:
    """A number of bytes, also as text.

    Raises
    ------
    ValueError
        The text is no size, or it is not above 0.

    Examples
    --------
    >>> size_of("10GB"), size_of("1.5 KiB")
    (10000000000, 1536)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B|)\s*", str(given).upper())
    size = int(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
    if size < 1:
        raise ValueError(
            f"max_shard_size={given!r} must be a size such as '10GB', '500MiB' or 10**9"
        )
    return size


def _parts(state: Mapping[str, Any], limit: int, safe: bool) -> Iterator[dict[str, Any]]:
    part: dict[str, Any] = {}
    filled = 0
    for names in _same(state):
        size = _bytes(state[names[0]])
        if part and filled + size > limit:
            yield part
            part, filled = {}, 0
        value = state[names[0]] if safe else _alone(state[names[0]])
        # By the second of two names safetensors would write a weight again.
        part |= dict.fromkeys(names[:1] if safe else names, value)
        filled += size
    yield part


def _same(state: Mapping[str, Any]) -> Iterator[list[str]]:
    """The names of each weight: tied ones have several."""
    groups: dict[Any, list[str]] = {}
    for weight, value in state.items():
        key: Any = weight
        if isinstance(value, torch.Tensor) and value.numel():
            key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        groups.setdefault(key, []).append(weight)
    yield from groups.values()


def _alone(value: Any) -> Any:
    """A tensor without the rest of a memory that it may be a part of."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().contiguous()
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def _bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _check_tensors(values: Any) -> None:
    odd = values
    if isinstance(values, dict):
        odd = [key for key, value in values.items() if not isinstance(value, torch.Tensor)]
        if not odd:
            return
    raise TypeError(
        f"safetensors holds tensors by name, and cannot hold {odd!r}; use safe_serialization=False"
    )
