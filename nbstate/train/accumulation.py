"""Gradient accumulation: which batch ends a window, and what becomes of a window left incomplete.

    num_steps=4, 10 batches              0 1 2 3 | 4 5 6 7 | 8 9
    rescale (the default)                      ^         ^     ^   weighs 4/2: a full update
    drop                                       ^         ^         8 and 9 are forgotten
    carry                                      ^         ^         8 and 9 open the next epoch

`^` marks a batch at which `sync_gradients` is true: ranks exchange gradients, the optimizer steps.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbstate.state import GradientState


@dataclass
class _Calls:
    """How often `accumulate` was entered for one batch (epoch, number) of a dataloader."""

    batch: tuple[int, int]
    now: int = 0
    for_each_batch: int = 1


class Accumulation:
    """Moves `GradientState.sync_gradients` from batch to batch.

    A batch may be cut into several micro-batches, each in an `accumulate` of its own: how many
    there are is learned from the batches before, so that the last batch ends its window with its
    last micro-batch, not with its first.

    Attributes
    ----------
    position : int
        How many gradients the open window holds, this batch's included: 1 to `num_steps`.
    within : bool
        Whether an `accumulate` block is being run.
    """

    def __init__(self, state: GradientState) -> None:
        self.state = state
        self.position = 0
        self.within = False
        self._ended = True
        self._weight = 1.0
        self._batches = 0  # of the open window, as `batches` counts them
        self._calls: weakref.WeakKeyDictionary[Any, _Calls] = weakref.WeakKeyDictionary()

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block for the next batch of the window."""
        self._advance()
        self.within = True
        try:
            yield
        finally:
            self.within = False

    def _advance(self) -> None:
        """Take the next batch into the window; settles whether it is the one to sync at."""
        if self._ended:
            self.position = self._batches = 0
        state = self.state
        self.position += 1
        self._batches += _in_hand(state.active_dataloader)
        full = self.position >= state.num_steps
        cut_short = self._is_last() and not full and self.policy != "carry"
        self._weight = state.num_steps / self.position if cut_short else 1.0
        self._ended = full or cut_short
        state.sync_gradients = full or (cut_short and self.policy == "rescale")

    @property
    def policy(self) -> str:
        """What becomes of an incomplete last window."""
        return self.state.last_window if self.state.sync_with_dataloader else "carry"

    @property
    def batches(self) -> int:
        """For how many batches of a single process the open window stands, this one's included.

        Without `accumulate` each batch is a window of its own.
        """
        loader = self.state.active_dataloader
        calls = self._calls.get(loader)
        within_window = calls is not None and calls.batch == _batch_of(loader)
        return self._batches if within_window else _in_hand(loader)

    @property
    def dropped(self) -> bool:
        """Whether the window ended with this batch and its gradients are to be forgotten."""
        return self._ended and not self.state.sync_gradients

    def weigh(self, optimizer: torch.optim.Optimizer) -> None:
        """Have the gradients of an incomplete window weigh as much as a full one's.

        `backward` divides each loss by `num_steps`; fewer of them make less than a mean.
        """
        if self._weight == 1.0:
            return
        params = (param for group in optimizer.param_groups for param in group["params"])
        grads = [param.grad for param in params if param.grad is not None]
        with torch.no_grad():
            for grad in grads:
                grad.mul_(self._weight)

    # What was counted is by dataloader, and is not that of a copy or in another process.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_calls"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _calls=weakref.WeakKeyDictionary())

    def state_dict(self) -> dict[str, Any]:
        """Where the window stands; gradients are not part of it."""
        return {"position": self.position, "batches": self._batches, "ended": self._ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within a saved window."""
        self.position, self._batches = state["position"], state["batches"]
        self._ended = state["ended"]

    def _is_last(self) -> bool:
        """Whether no gradient will follow from the innermost dataloader's epoch."""
        loader = self.state.active_dataloader
        if loader is None:
            return False
        batch = _batch_of(loader)
        calls = self._calls.setdefault(loader, _Calls(batch))
        if calls.batch != batch:
            calls.batch, calls.for_each_batch, calls.now = batch, calls.now, 0
        calls.now += 1
        ends = bool(getattr(loader, "end_of_dataloader", False))
        return ends and calls.now >= calls.for_each_batch


def _batch_of(loader: Any) -> tuple[int, int]:
    """Which batch a dataloader has handed out: the epoch, and its number there."""
    return getattr(loader, "epoch", 0), getattr(loader, "number", 0)


def _in_hand(loader: Any) -> int:
    """How many batches of a single process all ranks have in hand together."""
    facts = getattr(loader, "round", None)
    return 1 if facts is None else int(facts.batches)
