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

from nbstate.train.data import PreparedLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbstate.state import GradientState


@dataclass
class _Calls:
    """How often `accumulate` was entered for one batch (epoch, number) of a dataloader.

    `before` holds how often it was for earlier batches, by their size.
    """

    batch: tuple[int, int]
    size: int
    before: dict[int, int]
    expected: int = 1
    now: int = 0

    def of_next(self, batch: tuple[int, int], size: int) -> _Calls:
        """Those of the next batch, none so far."""
        self.before[self.size] = self.now
        return _Calls(batch, size, self.before, self.before.get(size) or self._foreseen(size))

    def _foreseen(self, size: int) -> int:
        """How often it will be for a size not met before: for micro-batches as large as now."""
        if size >= self.size:
            return self.now
        of_each = -(-self.size // self.now)
        return -(-size // of_each)


class Accumulation:
    """Moves `GradientState.sync_gradients` from batch to batch.

    A batch may be cut into several micro-batches, each in an `accumulate` of its own: how many
    there are is learned from earlier batches of as many samples, so that the last batch ends its
    window with its last micro-batch, not with its first. The first time that a batch has fewer
    samples it is taken to have as many micro-batches less. Those that come unforeseen after the end
    of the window are windows of their own, and weigh no more than in a full one.

    Attributes
    ----------
    position : int
        How many gradients the open window holds, this batch's included: 1 to `num_steps`.
    within : bool
        Whether an `accumulate` block is being run.
    joined : bool
        Whether ranks may have different numbers of batches: then windows end for all of them where
        the first one has its last batch.
    """

    def __init__(self, state: GradientState) -> None:
        self.state = state
        self.position = 0
        self.within = self.joined = False
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
        state, loader = self.state, self.state.active_dataloader
        self.position += 1
        self._batches += _in_hand(loader)
        full = self.position >= state.num_steps
        to_come = self._to_come(loader)
        last = to_come <= 0 and self._ends_with(loader)
        cut_short = last and not full and self.policy != "carry"
        self._weight = state.num_steps / self.position if cut_short and to_come == 0 else 1.0
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
        self.position, self._ended = state["position"], state["ended"]
        # Checkpoints used not to hold them; most windows have as many batches as gradients.
        self._batches = state.get("batches", self.position)

    def _ends_with(self, loader: Any) -> bool:
        """Whether the batch in hand is the last for any rank that takes part in exchanges."""
        state, uneven = self.state, self.joined and isinstance(loader, PreparedLoader)
        if not uneven or state.num_steps == 1 or loader.even_batches:
            return state.end_of_dataloader
        if self.policy == "carry":
            raise ValueError(
                "where ranks have different numbers of batches, an incomplete window cannot be "
                "carried into the next epoch: use last_window='rescale' or 'drop' and "
                "sync_with_dataloader=True, or even_batches=True"
            )
        return _last_for_some(loader)

    def _to_come(self, loader: Any) -> int:
        """How many more micro-batches of the batch in hand are foreseen; negative after those."""
        if loader is None:
            return 0
        batch, size, calls = _batch_of(loader), _size(loader), self._calls.get(loader)
        if calls is None or calls.batch != batch:
            calls = _Calls(batch, size, {}) if calls is None else calls.of_next(batch, size)
            self._calls[loader] = calls
        calls.now += 1
        if calls.now == 2:
            self._refuse_uneven_cuts(loader)
        return calls.expected - calls.now

    def _refuse_uneven_cuts(self, loader: Any) -> None:
        """Ranks with more micro-batches than others would wait for these in a backward pass.

        With windows of one batch each `accumulate` syncs: several for one batch are as many on all
        ranks then, such as for the two models of a GAN.
        """
        if self.joined or self.state.num_steps == 1 or not getattr(loader, "even_batches", False):
            return
        sizes = [size for size in loader.round.sizes if size]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"several `accumulate` for one batch, of which ranks hold {_listed(sizes)} "
                f"samples: cut into micro-batches, it would have more windows on some ranks than "
                f"on others, which wait for each other for ever. Have the batch sampler make "
                f"batches of one size, or use one `accumulate` for each batch"
            )


def _batch_of(loader: Any) -> tuple[int, int]:
    """Which batch a dataloader has handed out: the epoch, and its number there."""
    return getattr(loader, "epoch", 0), getattr(loader, "number", 0)


def _in_hand(loader: Any) -> int:
    """How many batches of a single process all ranks have in hand together."""
    facts = getattr(loader, "round", None)
    return 1 if facts is None else int(facts.batches)


def _size(loader: Any) -> int:
    """How many samples the batch in hand has, on the rank with the fewest: ranks have to agree."""
    facts = getattr(loader, "round", None)
    return 0 if facts is None else min(size for size in facts.sizes if size)


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def _last_for_some(loader: PreparedLoader) -> bool:
    """Whether a rank gets nothing after the batch in hand; every rank finds the same by itself."""
    try:
        left = len(loader.original) - loader._progress.used
    except TypeError as error:
        raise ValueError(
            "where ranks have different numbers of batches, they cannot agree on where the last "
            "window ends in a dataloader without a length: use even_batches=True, or "
            "gradient_accumulation_steps=1"
        ) from error
    # Of a batch that is cut for all, the last may have fewer samples than there are ranks.
    needed = 2 if loader.setup.config.split_batches else loader.setup.place.count
    return left < needed
