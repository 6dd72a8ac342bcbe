"""An optimizer that obeys GradientState."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbstate.operations import reduce
from nbstate.state import DistributedType, PartialState

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbstate.state import GradientState
    from nbstate.train.accumulation import Accumulation
    from nbstate.train.precision import Scaler


class AcceleratedOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step` and `zero_grad` do something only at the end of a window.

    Made by `Accelerator.prepare`; every attribute is the wrapped optimizer's.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer that does the work.
    accumulation : Accumulation
        What tells where a window ends.
    scaler : Scaler, optional
        Scales fp16 gradients and leaves out steps whose gradients overflow.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer
        The wrapped one.
    step_was_skipped : bool
        Whether the scaler left the last step out.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        accumulation: Accumulation,
        scaler: Scaler | None = None,
    ) -> None:
        # torch's own constructor would register the parameters a second time.
        self.optimizer = optimizer
        self.scaler = scaler
        if scaler is not None:
            scaler.optimizers.add(optimizer)
        self.step_was_skipped = False
        self._accumulation = accumulation
        self._stepped = self._finished = False
        self._on_xla = PartialState().distributed_type is DistributedType.XLA
        optimizer.register_step_post_hook(self._note_step)

    @property
    def gradient_state(self) -> GradientState:
        """What it obeys."""
        return self._accumulation.state

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step if gradients are synchronised, otherwise do nothing."""
        if not self.gradient_state.sync_gradients:
            return None
        self.finish_gradients()
        self._finished = self._stepped = False
        if self.scaler is None:
            result = self.optimizer.step(closure)
        else:
            result = self.scaler.step(self.optimizer, closure)
            self.scaler.note_step(self.optimizer)
        self.step_was_skipped = not self._stepped
        if self._on_xla:
            self.gradient_state.is_xla_gradients_synced = False
        return result

    def finish_gradients(self) -> None:
        """Make the gradients of a window what the step will use, once; clipping asks for it too."""
        if self._finished:
            return
        self._finished = True
        self._accumulation.weigh(self.optimizer)
        self._reduce_on_xla()
        if self.scaler is not None and self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients if they have been used, otherwise keep them for the window."""
        if self.gradient_state.sync_gradients:
            self._finished = False
            self.optimizer.zero_grad(set_to_none)

    def train(self) -> None:
        """For optimizers with a training mode (schedule-free ones); others ignore it."""
        if callable(train := getattr(self.optimizer, "train", None)):
            train()

    def eval(self) -> None:
        """For optimizers with an evaluation mode; others ignore it."""
        if callable(evaluate := getattr(self.optimizer, "eval", None)):
            evaluate()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not there yet, while this is unpickled
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"AcceleratedOptimizer({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.scaler is not None:
            self.scaler.optimizers.add(self.optimizer)
        self.optimizer.register_step_post_hook(self._note_step)  # torch's leave theirs behind

    def _note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # The scaler calls a fused optimizer always, and lets its kernel leave the step out.
        overflowed = getattr(optimizer, "found_inf", None)
        self._stepped = overflowed is None or not overflowed.item()

    def _reduce_on_xla(self) -> None:
        """Under XLA nothing reduces gradients in the backward pass, so it is done here.

        GradientState is told, and not asked: it knows one answer for all optimizers.
        """
        if not self._on_xla:
            return
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.copy_(reduce(param.grad))
        self.gradient_state.is_xla_gradients_synced = True
