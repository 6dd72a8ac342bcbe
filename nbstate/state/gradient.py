"""GradientState: whether gradients are to be exchanged now, and where in the data the loop is."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbstate.plugins import GradientAccumulationPlugin, adopt
from nbstate.state import xla
from nbstate.state.kinds import DistributedType
from nbstate.state.life import SharedState, caller, end
from nbstate.state.partial import PartialState

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class GradientFacts:
    """What the objects of GradientState share."""

    sync_gradients: bool = True
    is_xla_gradients_synced: bool = False
    plugin_kwargs: dict[str, Any] = field(default_factory=dict)
    # Those being iterated, the innermost last.
    loaders: list[weakref.ref[Any]] = field(default_factory=list)


class GradientState(SharedState[GradientFacts]):
    """Where accumulation and the data stand; every object in a process shows the same.

    It is moved by `nbstate.train`: dataloaders register while they are iterated, ``accumulate()``
    sets `sync_gradients`, optimizer and scheduler obey it.

    Parameters
    ----------
    gradient_accumulation_plugin : GradientAccumulationPlugin, optional
        The settings of accumulation; a later one replaces them.

    Examples
    --------
    >>> state = GradientState(GradientAccumulationPlugin(num_steps=4))
    >>> state.num_steps, state.sync_gradients
    (4, True)
    """

    def __init__(
        self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None
    ) -> None:
        plugin = adopt(
            GradientAccumulationPlugin,
            gradient_accumulation_plugin,
            "gradient_accumulation_plugin",
        )
        self._begin(GradientFacts, lambda _: None)
        if plugin is not None:
            self.plugin_kwargs = plugin.to_kwargs()

    @property
    def sync_gradients(self) -> bool:
        """Whether this backward pass ends a window, so that gradients are exchanged and used."""
        return self._facts.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._facts.sync_gradients = bool(value)
        if value and _distributed_type() is DistributedType.XLA:
            # The end of a window is where XLA should run what it has traced.
            xla.mark_step()

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.sync_gradients = sync_gradients

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Under XLA, whether gradients have been reduced and wait for the step; settable.

        Always True under FSDP, which reduces them in the backward pass.
        """
        facts = self._facts
        return _distributed_type() is DistributedType.FSDP or facts.is_xla_gradients_synced

    @is_xla_gradients_synced.setter
    def is_xla_gradients_synced(self, value: bool) -> None:
        self._facts.is_xla_gradients_synced = bool(value)

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """The settings of accumulation that differ from their defaults; settable."""
        return self._facts.plugin_kwargs

    @plugin_kwargs.setter
    def plugin_kwargs(self, value: dict[str, Any]) -> None:
        self._facts.plugin_kwargs = dict(value)

    @property
    def num_steps(self) -> int:
        """Batches in a window."""
        return int(self.plugin_kwargs.get("num_steps") or 1)

    @property
    def adjust_scheduler(self) -> bool:
        """Whether scheduler steps count also where the optimizer did not step."""
        return bool(self.plugin_kwargs.get("adjust_scheduler", False))

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a dataloader ends the window."""
        return bool(self.plugin_kwargs.get("sync_with_dataloader", True))

    @property
    def sync_each_batch(self) -> bool:
        """Whether ranks exchange gradients at every batch."""
        return bool(self.plugin_kwargs.get("sync_each_batch", False))

    @property
    def last_window(self) -> str:
        """What becomes of an incomplete last window: 'rescale', 'carry' or 'drop'."""
        return str(self.plugin_kwargs.get("last_window", "rescale"))

    @property
    def dataloader_references(self) -> list[Any]:
        """The dataloaders being iterated, the innermost last; none is kept alive by this state."""
        facts = self._facts
        facts.loaders = [reference for reference in facts.loaders if reference() is not None]
        loaders = [reference() for reference in facts.loaders]
        return [loader for loader in loaders if loader is not None]

    @property
    def active_dataloader(self) -> Any:
        """The innermost dataloader being iterated, None outside of all."""
        # Asked several times for every batch, so no list is made.
        for reference in reversed(self._facts.loaders):
            loader = reference()
            if loader is not None:
                return loader
        return None

    @property
    def in_dataloader(self) -> bool:
        """Whether a dataloader is being iterated."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether this is the last batch of the innermost dataloader."""
        return bool(getattr(self.active_dataloader, "end_of_dataloader", False))

    @property
    def remainder(self) -> int:
        """How many samples of the last batch are padding; -1 outside a dataloader."""
        return int(getattr(self.active_dataloader, "remainder", -1))

    def _add_dataloader(self, dataloader: object) -> None:
        """Make this the innermost dataloader: its iteration begins."""
        self._facts.loaders.append(weakref.ref(dataloader))

    def _remove_dataloader(self, dataloader: object) -> None:
        """Forget this dataloader: its iteration has ended, in whatever way."""
        loaders = self._facts.loaders
        for position in reversed(range(len(loaders))):
            if loaders[position]() is dataloader:
                del loaders[position]
                return

    @classmethod
    def _reset_state(cls) -> None:
        """Forget this state alone."""
        end(f"GradientState._reset_state() {caller()}", cls)

    def _lines(self) -> Iterator[tuple[str, object]]:
        yield "Sync gradients", self.sync_gradients
        yield "In dataloader", self.in_dataloader
        yield "End of dataloader", self.end_of_dataloader
        yield "Remainder", self.remainder
        yield "Num steps", self.num_steps
        yield "Plugin settings", self.plugin_kwargs


def _distributed_type() -> DistributedType | None:
    partial = PartialState._current()
    return None if partial is None else partial.facts.distributed_type
