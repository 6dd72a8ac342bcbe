"""A learning rate scheduler that keeps the pace of a single process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbstate.train.accumulation import Accumulation
    from nbstate.train.optimizer import AcceleratedOptimizer


class AcceleratedScheduler:
    """A scheduler that stands where it would stand had one process seen the same batches.

    N ranks take N batches of a dataloader at a time, so a schedule written for one process moves on
    by as many steps as there were batches (by one with ``split_batches``, where a batch is
    everybody's). It does so when the optimizer steps: not within an accumulation window, whether it
    is called there or not, and not where a step was skipped. Called outside of a prepared
    dataloader, once an epoch for one, it moves by one step.

    Parameters
    ----------
    scheduler : LRScheduler
        Anything with a method ``step``.
    optimizers : sequence of AcceleratedOptimizer
        The optimizers whose steps it follows; without any, none is ever skipped.
    accumulation : Accumulation
        What tells where a window ends.
    step_with_optimizer : bool
        False passes every call on, as it is.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: Sequence[AcceleratedOptimizer],
        accumulation: Accumulation,
        *,
        step_with_optimizer: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = list(optimizers)
        self.gradient_state = accumulation.state
        self._accumulation = accumulation
        self.step_with_optimizer = step_with_optimizer
        # Batches of windows that ended, too few for a step of a single process.
        self._left = 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move on as far as the batches of the window that ends ask for."""
        loader = self.gradient_state.active_dataloader
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if loader is None:
            # After an epoch, or in a loop over data that was not prepared.
            if self.gradient_state.sync_gradients or not self._accumulation.within:
                self.scheduler.step(*args, **kwargs)
            return
        if not self.gradient_state.sync_gradients:
            return
        due = self._due()
        skipped = [optimizer.step_was_skipped for optimizer in self.optimizers]
        if skipped and all(skipped):
            return
        for _ in range(1 if args or kwargs else due):
            if not self._at_end():
                self.scheduler.step(*args, **kwargs)

    def _due(self) -> int:
        """How many steps one process would have taken for the window's batches."""
        state, policy = self.gradient_state, self._accumulation.policy
        window = 1 if state.adjust_scheduler else state.num_steps
        due, self._left = divmod(self._left + self._accumulation.batches, window)
        if self._left and state.end_of_dataloader and policy != "carry":
            self._left = 0
            due += policy == "rescale"
        return due

    def _at_end(self) -> bool:
        """Whether the schedule has no further steps; OneCycleLR raises when asked for one."""
        total = getattr(self.scheduler, "total_steps", None)
        return total is not None and self.scheduler.last_epoch + 1 >= total

    def get_last_lr(self) -> list[float]:
        """The learning rates of the optimizer's groups."""
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """The wrapped scheduler's state, and the batches left over."""
        return {"scheduler": self.scheduler.state_dict(), "batches": self._left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self._left = state_dict["batches"]

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # not there yet, while this is unpickled
            raise AttributeError(name)
        return getattr(self.scheduler, name)
