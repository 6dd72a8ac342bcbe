"""Objects as bytes on their way between ranks."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from nbstate.state.rank_only import Outcome


def dumps(value: object) -> bytes:
    """The value as bytes; its tensors travel through the CPU and without gradients."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def loads(payload: bytes, device: torch.device) -> Any:
    """The value again, with those tensors that left an accelerator on this device."""
    return _Unpickler(io.BytesIO(payload), device).load()


def outcome_dumps(outcome: Outcome) -> bytes:
    """The outcome as bytes; what cannot be sent becomes an error that can, so that nobody waits."""
    try:
        return dumps(outcome)
    except Exception as error:
        what = f"raised {outcome.error!r}" if outcome.error else f"returned {outcome.value!r}"
        told = f"another rank {what}, which cannot be sent: {error}"
        return dumps(Outcome(error=RuntimeError(told)))


class _Pickler(pickle.Pickler):
    # A tensor sent as it is would be unpacked onto the sender's device, on every rank.
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        if obj.device.type != "cpu":
            return _on_own_device, (obj.detach().cpu(),)
        return (torch.Tensor.detach, (obj.detach(),)) if obj.requires_grad else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, device: torch.device) -> None:
        super().__init__(file)
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, _on_own_device.__name__):
            return self._received
        return super().find_class(module, name)

    def _received(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)


def _on_own_device(tensor: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("stands in the bytes for what the receiver does")
