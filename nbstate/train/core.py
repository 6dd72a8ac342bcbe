"""What the parts of an Accelerator share: the states, and what was prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from nbstate.state import PartialState
from nbstate.state.control import ProcessControl
from nbstate.train.data import PreparedLoader
from nbstate.train.optimizer import AcceleratedOptimizer
from nbstate.train.scheduler import AcceleratedScheduler

if TYPE_CHECKING:
    from nbstate.state import AcceleratorState, GradientState
    from nbstate.state.facts import ProcessFacts
    from nbstate.train.accumulation import Accumulation
    from nbstate.train.precision import Precision, Scaler
    from nbstate.train.project import ProjectConfiguration


class Core(ProcessControl):
    """The base of the parts that make up an Accelerator.

    Attributes
    ----------
    state : AcceleratorState
        Who this process is and how it trains.
    gradient_state : GradientState
        Where accumulation and data stand.
    project_configuration : ProjectConfiguration
        Where logs and checkpoints go.
    """

    state: AcceleratorState
    gradient_state: GradientState
    project_configuration: ProjectConfiguration
    _accumulation: Accumulation
    _precision: Precision
    # By id: what was given to `prepare`, and what came of it; also by the id of the latter.
    _prepared: dict[int, tuple[Any, Any]]

    @property
    def _process(self) -> ProcessFacts:
        return self.state._process

    @classmethod
    def _here(cls) -> ProcessFacts:
        return PartialState._here()

    @classmethod
    def _joined(cls) -> ProcessFacts:
        return PartialState._joined()

    @property
    def mixed_precision(self) -> str:
        """The precision in force: 'no', 'fp16', 'bf16' or 'fp8'."""
        return self.state.mixed_precision

    @property
    def scaler(self) -> Scaler | None:
        """What scales fp16 gradients; None in other precisions."""
        return self._precision.scaler

    def _remember(self, thing: Any, prepared: Any) -> None:
        # Both are kept, so that their ids stay their own.
        self._prepared[id(thing)] = self._prepared[id(prepared)] = (thing, prepared)

    def _all(self, kind: type) -> list[Any]:
        """Everything prepared of a kind, in the order of preparation."""
        unique = {id(prepared): prepared for _, prepared in self._prepared.values()}
        return [prepared for prepared in unique.values() if isinstance(prepared, kind)]

    @property
    def _models(self) -> list[nn.Module]:
        return self._all(nn.Module)

    @property
    def _optimizers(self) -> list[AcceleratedOptimizer]:
        return self._all(AcceleratedOptimizer)

    @property
    def _schedulers(self) -> list[AcceleratedScheduler]:
        return self._all(AcceleratedScheduler)

    @property
    def _dataloaders(self) -> list[PreparedLoader]:
        return self._all(PreparedLoader)
