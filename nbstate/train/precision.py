"""Mixed precision: forward passes in 16 bits, outputs back in 32, fp16 gradients scaled."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from nbstate.operations.nested import map_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from nbstate.plugins import AutocastKwargs, GradScalerKwargs

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}


class Precision:
    """How one run computes.

    Parameters
    ----------
    mode : {'no', 'fp16', 'bf16', 'fp8'}
        What is in force; with 'fp8' torchao turns linear layers, the rest runs in bf16.
    device : torch.device
        Where models run.
    autocast, scaler : plugin, optional
        Keyword arguments for torch's classes.
    """

    def __init__(
        self,
        mode: str,
        device: torch.device,
        autocast: AutocastKwargs | None = None,
        scaler: GradScalerKwargs | None = None,
    ) -> None:
        self.mode, self.device = mode, device
        self._autocast = {} if autocast is None else autocast.to_kwargs()
        self.scaler: Scaler | None = None
        if mode == "fp16":
            options = {} if scaler is None else scaler.to_kwargs()
            # XLA and MPS have no scaler of their own; the CPU's works on any tensor.
            kind = device.type if device.type in {"cuda", "xpu", "npu"} else "cpu"
            self.scaler = Scaler(kind, **options)

    def autocast(
        self, autocast_handler: AutocastKwargs | None = None
    ) -> AbstractContextManager[Any]:
        """A block that computes in this precision; nothing for 'no'."""
        options = self._autocast if autocast_handler is None else autocast_handler.to_kwargs()
        if self.mode == "no":
            return nullcontext()
        return torch.autocast(self.device.type, TYPES[self.mode], **options)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Have the model's forward pass run in this precision and give fp32 outputs; in place."""
        if self.mode == "fp8":
            _to_float8(model)
        if self.mode != "no" and not isinstance(model.forward, Forward):
            model.forward = Forward(model.forward, self)
        return model


class Scaler(torch.amp.GradScaler):
    """torch's scaler, which for prepared optimizers calls `update` itself.

    torch has `update` called once all optimizers have stepped, for it forgets whose gradients were
    unscaled. With several of them nobody knows which one is the last of an iteration: the scale
    changes with the step of the last there is, or when the next loss is scaled.

    Attributes
    ----------
    optimizers : WeakSet
        Those that are prepared.
    """

    def __init__(self, device: str, **options: Any) -> None:
        super().__init__(device, **options)
        self.optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._stepped: set[int] = set()  # their ids

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Change the scale if this prepared optimizer was the last to call `step`."""
        self._stepped.add(id(optimizer))
        if self._stepped.issuperset(map(id, self.optimizers)):
            self.update()

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Change the scale as the steps since the last time ask for."""
        super().update(new_scale)
        self._stepped.clear()

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or several, by the scale."""
        self._catch_up()
        return super().scale(outputs)

    def state_dict(self) -> dict[str, Any]:
        """The scale after all steps taken, and how it changes."""
        self._catch_up()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved scale."""
        self._catch_up()
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self._catch_up()  # torch refuses to copy a scaler in the middle of an iteration
        return {k: v for k, v in super().__getstate__().items() if k != "optimizers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.optimizers = WeakSet()  # copies of optimizers enter themselves

    def _catch_up(self) -> None:
        if self._stepped:
            self.update()


class Forward:
    """A model's forward pass under autocast, with its 16 bit outputs turned into fp32.

    An object instead of a closure, so that the model can be copied and pickled.
    """

    def __init__(self, original: Callable[..., Any], precision: Precision) -> None:
        self.original, self.precision = original, precision

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.precision.autocast():
            outputs = self.original(*args, **kwargs)
        return map_tensors(_in_32_bits, outputs)


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Give the model its own forward pass back; in place."""
    wrapped = model.__dict__.get("forward")
    if isinstance(wrapped, Forward):
        del model.forward
        if model.forward != wrapped.original:
            model.forward = wrapped.original  # it had been replaced before
    return model


def _in_32_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _to_float8(model: torch.nn.Module) -> None:
    if importlib.util.find_spec("torchao") is None:
        raise ImportError("mixed_precision='fp8' needs torchao: pip install torchao, or use 'bf16'")
    float8 = importlib.import_module("torchao.float8")
    float8.convert_to_float8_training(model, module_filter_fn=_fits_float8)


def _fits_float8(module: torch.nn.Module, _name: str) -> bool:
    """Whether a layer's sizes are the multiples of 16 that 8 bit products need on CUDA."""
    if not isinstance(module, torch.nn.Linear):
        return False
    return module.in_features % 16 == module.out_features % 16 == 0
