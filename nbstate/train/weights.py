"""Weights and optimizer state on disk: as they are, or in the shards that ranks hold.

plain      every rank has everything; rank 0 writes model.safetensors (or pytorch_model.bin),
           optimizers are apart
sharded    each rank writes its part, into sharded/
full       shards put together for the file: model.safetensors and optimizer.pt
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, load_model
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from nbstate.train import files
from nbstate.train.parallel import is_sharded, unwrap

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
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

    def states(self) -> dict[int, dict[str, Any]]:
        """The weights of each model, by its number; nothing where ranks hold parts of models."""
        return {n: model.state_dict() for n, model in enumerate(self.models) if self.plain}

    def save(
        self, directory: Path, states: Mapping[int, dict[str, Any]], *, safe: bool = True
    ) -> list[Any]:
        """Write the weights: a collective.

        Parameters
        ----------
        directory : Path
            Where to.
        states : dict
            Those of `states` that are to be written.
        safe : bool
            Whole models by safetensors, not by `torch.save`.

        Returns
        -------
        list
            What is to be kept of each optimizer beside: its state, or whether it has taken a step.
        """
        if self.plain:
            if self.state.is_main_process:
                for number, state in states.items():
                    files.write(state, directory / files.name(safe, number), safe=safe)
            return [optimizer.state_dict() for optimizer in self.optimizers]
        stepped = [bool(optimizer.state) for optimizer in self.optimizers]
        if self._full:
            self._save_full(directory, safe=safe)
        else:
            model, optimizer = get_state_dict(self._whole(), self.optimizers)
            state_dict_saver.save(
                {"model": model, "optimizer": optimizer}, checkpoint_id=directory / "sharded"
            )
        self._forget_first_steps(stepped)
        return stepped

    def load(self, directory: Path, kept: list[Any], wanted: Collection[int]) -> None:
        """Read the weights, into models of any layout: a collective.

        Parameters
        ----------
        directory : Path
            Where from.
        kept : list
            What `save` returned.
        wanted : collection of int
            The numbers of the models to read, where each has a file of its own.
        """
        if (directory / "sharded").exists():
            self._load_sharded(directory / "sharded")
            self._forget_first_steps(kept)
        elif (directory / "optimizer.pt").exists():
            self._load_full(directory)
            self._forget_first_steps(kept)
        else:
            self._load_plain(directory, kept, wanted)

    def _whole(self) -> nn.Module:
        """All models as one, so that one optimizer may train several."""
        return nn.ModuleList(self.models)

    def _save_full(self, directory: Path, *, safe: bool) -> None:
        model, optimizer = get_state_dict(self._whole(), self.optimizers, options=_FULL)
        if not self.state.is_main_process:
            return
        for number in range(len(self.models)):
            prefix = f"{number}."
            own = {
                name.removeprefix(prefix): value
                for name, value in model.items()
                if name.startswith(prefix)
            }
            files.write(own, directory / files.name(safe, number), safe=safe)
        torch.save(optimizer, directory / "optimizer.pt")

    def _load_plain(self, directory: Path, kept: list[Any], wanted: Collection[int]) -> None:
        for number, model in enumerate(self.models):
            if number not in wanted:
                continue
            safe = directory / files.name(True, number)
            if safe.exists() and not is_sharded(model):
                # Knows that of tied weights one name is in the file.
                load_model(model, safe, device=str(self.state.device))
            elif is_sharded(model):
                set_model_state_dict(model, _read(directory, number), options=_FULL)
            else:
                model.load_state_dict(_read(directory, number))
        for optimizer, state in zip(self.optimizers, kept, strict=True):
            if self.plain:
                optimizer.load_state_dict(state)
            else:
                self._cut(state, optimizer)
        if not self.plain:
            self._forget_first_steps([bool(state["state"]) for state in kept])

    def _cut(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer of sharded models its parts of the state of one of whole models."""
        # The state numbers parameters; torch cuts it by their names, which come in the same order.
        named: Any = get_optimizer_state_dict(self._whole(), optimizer)["param_groups"]
        names = [name for group in named for name in group["params"]]
        whole: Any = {
            "state": {names[number]: of_one for number, of_one in state["state"].items()},
            "param_groups": [
                {**group, "params": [names[number] for number in group["params"]]}
                for group in state["param_groups"]
            ],
        }
        self._set_whole(whole, optimizer)

    def _load_full(self, directory: Path) -> None:
        model = {
            f"{number}.{name}": value
            for number in range(len(self.models))
            for name, value in _read(directory, number).items()
        }
        set_model_state_dict(self._whole(), model, options=_FULL)
        state = torch.load(directory / "optimizer.pt", weights_only=False)
        for optimizer in self.optimizers:
            self._set_whole(state, optimizer)

    def _load_sharded(self, directory: Path) -> None:
        model, optimizer = get_state_dict(self._whole(), self.optimizers)
        found: dict[str, Any] = {"model": model, "optimizer": optimizer}
        with warnings.catch_warnings():
            # One process may read what several wrote; torch remarks on that.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            state_dict_loader.load(
                found, checkpoint_id=directory, no_dist=not dist.is_initialized()
            )
        set_state_dict(
            self._whole(),
            self.optimizers,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )

    def _set_whole(self, state: Any, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer its parts of whole tensors, named as their parameters."""
        own: Any = get_optimizer_state_dict(self._whole(), optimizer)["state"]
        kept = [value for of_one in own.values() for value in of_one.values()]
        # torch fails where there is nothing to cut: plain SGD keeps nothing.
        cut = any(isinstance(value, torch.Tensor) and value.dim() for value in kept)
        options = _FULL if cut else None
        set_optimizer_state_dict(self._whole(), optimizer, state, options=options)

    def _forget_first_steps(self, stepped: list[bool]) -> None:
        """Undo the empty step that torch has an optimizer take to learn what state it keeps."""
        for optimizer, has_stepped in zip(self.optimizers, stepped, strict=True):
            if not has_stepped:
                optimizer.state.clear()


def whole_state_dict(model: nn.Module) -> dict[str, Any]:
    """The weights of a model that ranks hold parts of, on rank 0; nothing on others. Collective."""
    return get_model_state_dict(model, options=_FULL)


def _read(directory: Path, number: int) -> dict[str, Any]:
    safe = directory / files.name(True, number)
    if safe.exists():
        return dict(load_file(safe))
    path = directory / files.name(False, number)
    weights: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return weights
