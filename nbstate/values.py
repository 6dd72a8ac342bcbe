"""Values that travel from a rank to the kernel: pickled, with big buffers in shared memory.

A tensor arrives on the CPU. Buffers of `SHARED_FROM` bytes or more are written once into one
anonymous memory file per rank; the kernel maps that file and builds tensors and arrays on top of
the mapping, so nothing is copied a second time. Classes and functions of the notebook that the
kernel had at the fork travel by reference, everything else of `__main__` by value.

An anonymous memory file does not count against the size of /dev/shm, which containers often limit
to 64 MB; where the platform has none, an unlinked temporary file takes its place.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import sys
import tempfile
import weakref
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, cast

import cloudpickle

from nbstate.environment import running_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SHARED_FROM = 64 * 1024
_PAGE = mmap.ALLOCATIONGRANULARITY
_NO_FILE = "<dynamic-code>"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value

_ASKING = {"raw_input": ("builtins", "input"), "getpass": ("getpass", "getpass")}
"""Methods of ipykernel's kernel, and what they stand in for while a cell runs."""

Buffers = tuple["bytes | bytearray | tuple[int, int]", ...]


class UnpicklableError(TypeError):
    """A value cannot travel between processes; the message names the path to the culprit."""


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc] # cloudpickle has no types
    within_group = False

    def __init__(self, file: io.BytesIO, by_reference: Mapping[int, str], **keywords: Any) -> None:
        super().__init__(file, protocol=5, **keywords)
        self._by_reference = by_reference
        self._data: dict[object, _TensorData] = {}

    def reducer_override(self, obj: Any) -> Any:
        name = self._by_reference.get(id(obj))
        if name is not None and _from_main(name) is obj:
            return _from_main, (name,)
        if isinstance(obj, CodeType):
            return _with_its_file(self.dispatch_table[CodeType](obj), obj)
        kernels = isinstance(obj, MethodType) and obj.__self__ is running_kernel()
        if kernels and obj.__name__ in _ASKING:  # who receives it asks in its own way
            return _asking, _ASKING[obj.__name__]
        reason = _refusal(obj, within_group=self.within_group)
        if reason is not None:
            raise TypeError(reason)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            reduced = self._reduce_tensor(torch, obj)
            if reduced is not None:
                return reduced
        return super().reducer_override(obj)

    def _reduce_tensor(self, torch: Any, tensor: Any) -> Any:
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout != torch.strided or tensor.is_quantized:
            return None
        # Tied weights are two names for the same memory: they share one piece of data.
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.device)
        key = (*place, tensor.dtype, tensor.is_conj(), tensor.is_neg())
        data = self._data.get(key) if tensor.numel() else None
        if data is None:
            data = self._data[key] = _TensorData(tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return _tensor, (data, is_parameter, tensor.requires_grad)


def _refusal(obj: object, *, within_group: bool = False) -> str | None:
    """Why something that pickles must not travel, and what can instead; None if it may."""
    kind = type(obj)  # a proxy that stands for another object is asked nothing
    if issubclass(kind, io.IOBase) and _is_open_file(obj):
        return "an open file stays in its process; use its name, or what it holds"
    torch = sys.modules.get("torch")
    if torch is None or within_group:
        return None
    if issubclass(kind, torch.nn.Module):
        if issubclass(kind, torch.nn.parallel.DistributedDataParallel):
            return "it belongs to its process group; use model.module, or its state_dict()"
        if hasattr(obj, "set_requires_gradient_sync"):  # FSDP2's, whose class torch has moved about
            return (
                "each rank holds a shard; use {name: shard.full_tensor() for name, shard in "
                "model.state_dict().items()}, made on all ranks"
            )
    elif issubclass(kind, torch.Tensor) and hasattr(obj, "full_tensor"):
        return "each rank holds a shard; use tensor.full_tensor(), made on all ranks"
    return None


def _is_open_file(stream: object) -> bool:
    # cloudpickle would send what a file holds, unsaid; of the process's streams it knows the name.
    in_memory = isinstance(stream, (io.StringIO, io.BytesIO))
    return not in_memory and stream not in {sys.stdout, sys.stderr}


def _with_its_file(reduced: Any, code: CodeType) -> Any:
    """Have a traceback in the receiver name the cell; cloudpickle leaves its name out."""
    make, parts = reduced
    return make, tuple(code.co_filename if part == _NO_FILE else part for part in parts)


class _TensorData:
    """The bytes of one tensor, moved to the CPU, with what is needed to read them."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()

    def __reduce_ex__(self, protocol: Any) -> Any:
        import torch

        raw: Any = b""
        if count := self.tensor.numel():
            # Not by reshape, which leaves a single value of a row with the stride of its column.
            flat = self.tensor.as_strided((count,), (1,)).view(torch.uint8)
            raw = pickle.PickleBuffer(flat.numpy())
        return _TensorData.rebuild, (raw, self.tensor.dtype, tuple(self.tensor.shape))

    @staticmethod
    def rebuild(raw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
        import torch

        if not memoryview(raw).nbytes:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)


def _tensor(data: Any, is_parameter: bool, requires_grad: bool) -> Any:
    import torch

    if is_parameter:
        return torch.nn.Parameter(data, requires_grad=requires_grad)
    # A view, so that two tensors on one piece of data can differ in whether they want a gradient.
    return data.view_as(data).requires_grad_(requires_grad) if requires_grad else data


def _asking(module: str, name: str) -> Any:
    return getattr(sys.modules[module], name)


def _from_main(name: str) -> Any:
    return getattr(sys.modules["__main__"], name, None)


def names_in_main() -> dict[int, str]:
    """Return the functions and classes of the notebook as `{id: name}`, to travel by reference."""
    main = vars(sys.modules["__main__"])
    return {id(value): name for name, value in list(main.items()) if _is_defined_as(name, value)}


def _is_defined_as(name: str, value: Any) -> bool:
    try:
        return bool(value.__module__ == "__main__" and value.__qualname__ == name)
    except Exception:  # it has none, or is a proxy that refuses to be looked at
        return False


def dump(
    value: object,
    what: str,
    by_reference: Mapping[int, str] | None = None,
    *,
    within_group: bool = False,
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle `value`; buffers stay apart, uncopied.

    Parameters
    ----------
    value
        Anything that pickle or cloudpickle can take.
    what
        What to call it in an error, such as ``result``.
    by_reference
        Objects that the receiver has under the same name in `__main__`, as `{id: name}`.
    within_group
        The receiver is in the same process group, so that models may travel that belong to it.

    Raises
    ------
    UnpicklableError
        Names the path to the part that cannot travel, such as ``result['model'].lock``.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = _dumps(value, by_reference or {}, buffers.append, within_group=within_group)
    except Exception as error:
        raise UnpicklableError(_culprit(value, what, error)) from error
    return pickled, buffers


def dump_whole(value: object) -> bytes:
    """Pickle `value` with its buffers inside."""
    return _dumps(value, {})


def load(payload: bytes, buffers: Sequence[Any]) -> Any:
    """Rebuild what `dump` pickled."""
    return pickle.loads(payload, buffers=buffers)


def _dumps(
    value: object,
    by_reference: Mapping[int, str],
    keep: Callable[[pickle.PickleBuffer], object] | None = None,
    *,
    within_group: bool = False,
) -> bytes:
    pickler = _Pickler(file := io.BytesIO(), by_reference, buffer_callback=keep)
    pickler.within_group = within_group
    pickler.dump(value)
    return file.getvalue()


# -- what cannot travel, and where it is


def _culprit(value: object, what: str, error: Exception) -> str:
    path, found, reason = _descend(value, what, error, depth=0)
    name = f"{type(found).__module__}.{type(found).__qualname__}".removeprefix("builtins.")
    return f"{path} cannot travel between processes ({name}): {reason}"


def _descend(
    value: object, path: str, error: Exception, depth: int
) -> tuple[str, object, Exception]:
    """Follow the first part that does not pickle down to the smallest such part."""
    if depth < 20 and _refusal(value) is None and not _refuses(value):
        for step, part in _parts(value):
            try:
                _dumps(part, {}, lambda _: None)
            except Exception as found:
                return _descend(part, path + step, found, depth + 1)
    return path, value, error


def _refuses(value: Any) -> bool:
    """Tell whether it is the object itself that does not pickle, whatever its parts are."""
    kind: Any = type(value)
    if kind.__reduce__ is object.__reduce__:
        return False
    try:
        value.__reduce__()
    except Exception:
        return True
    return False


def _parts(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    cells = getattr(value, "__closure__", None)
    if cells:
        names = cast("Any", value).__code__.co_freevars
        return [
            (f"<closure variable {name!r}>", cell.cell_contents)
            for name, cell in zip(names, cells, strict=True)
        ]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return [(f".{name}", part) for name, part in vars(value).items()]
    return []


# -- shared memory


def share(buffers: Sequence[pickle.PickleBuffer]) -> tuple[Buffers, int | None, int]:
    """Put the big ones of `buffers` into one memory file.

    Returns
    -------
    tuple
        For each buffer its bytes, or `(offset, length)` in the file; then the file's descriptor
        and length in bytes, or None and 0.
    """
    raws = [buffer.raw() for buffer in buffers]
    placed: list[bytes | bytearray | tuple[int, int]] = []
    end = 0
    for raw in raws:
        if raw.nbytes < SHARED_FROM:
            placed.append(bytes(raw) if raw.readonly else bytearray(raw))
        else:
            placed.append((end, raw.nbytes))
            end += -(-raw.nbytes // _PAGE) * _PAGE
    if not end:
        return tuple(placed), None, 0
    descriptor = _memory_file()
    os.ftruncate(descriptor, end)
    for place, raw in zip(placed, raws, strict=True):
        if isinstance(place, tuple):
            _write_at(descriptor, raw, place[0])
    return tuple(placed), descriptor, end


def map_shared(buffers: Buffers, descriptor: int | None) -> list[Any]:
    """Return `buffers` with every `(offset, length)` mapped from the memory file.

    What is written to a buffer stays in this process, and costs a copy of that page: others have
    the same file, and what is forked from here must have its own, as of all other memory.
    """
    if descriptor is None:
        return list(buffers)
    whole = _mapped(descriptor)
    return [
        whole[place[0] : sum(place)] if isinstance(place, tuple) else place for place in buffers
    ]


def _mapped(descriptor: int) -> memoryview:
    """Map a file for as long as something refers to the result or a slice of it.

    Python's own mmap, before 3.13, keeps the file open for that long too, and there may be hundreds
    of results. A mapping for each buffer would give no memory back earlier: the pages are the
    file's, and the last mapping keeps them all.
    """
    length = os.fstat(descriptor).st_size
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, length, access, mmap.MAP_PRIVATE, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: to map {length:,} bytes")
    memory = (ctypes.c_ubyte * length).from_address(address)
    # Not at exit: other threads may still be reading.
    weakref.finalize(memory, _libc.munmap, address, length).atexit = False
    return pickle.PickleBuffer(memory).raw()


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nbstate", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write_at(descriptor: int, raw: memoryview, offset: int) -> None:
    while raw:
        written = os.pwrite(descriptor, raw[: 1 << 30], offset)
        raw, offset = raw[written:], offset + written
