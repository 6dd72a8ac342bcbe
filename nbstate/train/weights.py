"""Weights and optimizer state on disk: as they are, or in the shards that ranks hold.

plain      every rank has everything; rank 0 writes model.safetensors, optimizers are apart
sharded    each rank writes its part, into sharded/
full       shards put together for the file: model.safetensors and optimizer.pt
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from nbstate.train.parallel import is_sharded, unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nbstate.state import AcceleratorState

_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Weights:
    """The models and optimizers of a training, to be saved or loaded.

    Parameters
    ----------
    models, optimizers : sequence
        torch's own optimizers, not their wrappers.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: AcceleratorState,
    ) -> None:
        self.models = [unwrap(model) for model in models]
        self.optimizers = list(optimizers)
        self.state = state
        self.plain = not any(map(is_sharded, self.models))
        plugin = state.fsdp_plugin
        self._full = plugin is not None and plugin.state_dict_type == "full_state_dict"

    def save(self, directory: Path) -> list[Any]:
        """Write the weights: a collective.

        Returns
        -------
        list
            What is to be kept of each optimizer beside: its state, or whether it has taken a step.
        """
        if self.plain:
            self._save_plain(directory)
            return [optimizer.state_dict() for optimizer in self.optimizers]
        stepped = [bool(optimizer.state) for optimizer in self.optimizers]
        if self._full:
            self._save_full(directory)
        else:
            model, optimizer = get_state_dict(self._whole(), self.optimizers)
            state_dict_saver.save(
                {"model": model, "optimizer": optimizer}, checkpoint_id=directory / "sharded"
            )
        self._forget_first_steps(stepped)
        return stepped

    def load(self, directory: Path, kept: list[Any]) -> None:
        """Read the weights, into models of any layout: a collective.

        Raises
        ------
        ValueError
            The optimizers' state was saved for whole models, and these are sharded.
        """
        if (directory / "sharded").exists():
            self._load_sharded(directory / "sharded")
            self._forget_first_steps(kept)
        elif (directory / "optimizer.pt").exists():
            self._load_full(directory)
            self._forget_first_steps(kept)
        else:
            self._load_plain(directory, kept)

    def _whole(self) -> nn.Module:
        """All models as one, so that one optimizer may train several."""
        return nn.ModuleList(self.models)

    def _save_plain(self, directory: Path) -> None:
        if self.state.is_main_process:
            for number, model in enumerate(self.models):
                save_model(model, str(directory / _file(number)))

    def _save_full(self, directory: Path) -> None:
        model, optimizer = get_state_dict(self._whole(), self.optimizers, options=_FULL)
        if not self.state.is_main_process:
            return
        for number in range(len(self.models)):
            prefix = f"{number}."
            save_file(
                {
                    name.removeprefix(prefix): cast("torch.Tensor", value).contiguous()
                    for name, value in model.items()
                    if name.startswith(prefix)
                },
                directory / _file(number),
            )
        torch.save(optimizer, directory / "optimizer.pt")

    def _load_plain(self, directory: Path, kept: list[Any]) -> None:
        for number, model in enumerate(self.models):
            if is_sharded(model):
                saved = load_file(directory / _file(number))
                set_model_state_dict(model, dict(saved), options=_FULL)
            else:
                load_model(model, directory / _file(number), device=str(self.state.device))
        if self.optimizers and not self.plain:
            raise ValueError(
                f"{directory} holds the optimizers' state for whole models, and these are sharded; "
                f"load it with the layout that it was saved with and save it with "
                f"FullyShardedDataParallelPlugin(state_dict_type='full_state_dict')"
            )
        for optimizer, state in zip(self.optimizers, kept, strict=True):
            optimizer.load_state_dict(state)

    def _load_full(self, directory: Path) -> None:
        model = {
            f"{number}.{name}": value
            for number in range(len(self.models))
            for name, value in load_file(directory / _file(number)).items()
        }
        optimizer = torch.load(directory / "optimizer.pt", weights_only=False)
        self._set(model, optimizer, _FULL)

    def _load_sharded(self, directory: Path) -> None:
        model, optimizer = get_state_dict(self._whole(), self.optimizers)
        found: dict[str, Any] = {"model": model, "optimizer": optimizer}
        with warnings.catch_warnings():
            # One process may read what several wrote; torch remarks on that.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            state_dict_loader.load(
                found, checkpoint_id=directory, no_dist=not dist.is_initialized()
            )
        self._set(found["model"], found["optimizer"])

    def _set(
        self, model: dict[str, Any], optimizer: Any, options: StateDictOptions | None = None
    ) -> None:
        set_state_dict(
            self._whole(),
            self.optimizers,
            model_state_dict=model,
            optim_state_dict=optimizer,
            options=options,
        )

    def _forget_first_steps(self, stepped: list[bool]) -> None:
        """Undo the empty step that torch has an optimizer take to learn what state it keeps."""
        for optimizer, has_stepped in zip(self.optimizers, stepped, strict=True):
            if not has_stepped:
                optimizer.state.clear()


def _file(number: int) -> str:
    return f"model_{number}.safetensors" if number else "model.safetensors"
