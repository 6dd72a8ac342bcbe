"""Saving and loading the whole of a training: `save_state`, `load_state`.

checkpoint_3/
    checkpoint.json        what is in here; the mark of a complete checkpoint
    model.safetensors      each model's weights (model_1.safetensors, ...; or .bin), or
    sharded/               weights and optimizer state in shards (torch.distributed.checkpoint)
    training.pt            optimizers, schedulers, scaler, positions in the data, registered objects
    random_0.pt            random numbers, one file for each rank
"""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict  # takes the weak references that handles of hooks need
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from nbstate.plugins import adopt
from nbstate.state import DistributedType
from nbstate.train import storage
from nbstate.train.core import Core
from nbstate.train.project import ProjectConfiguration
from nbstate.train.randomness import random_state, set_random_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbstate.train.weights import Weights

Found = TypeVar("Found")
_PREFIX = "checkpoint_"


class Checkpoints(Core):
    """The part of an Accelerator that saves and loads."""

    _registered: list[Any]
    _save_hooks: OrderedDict[int, Callable[..., object]]
    _load_hooks: OrderedDict[int, Callable[..., object]]

    def _init_checkpoints(self, project_dir: str | Path | None, config: Any) -> None:
        config = adopt(ProjectConfiguration, config, "project_config") or ProjectConfiguration()
        if project_dir is not None:
            config = dataclasses.replace(config, project_dir=project_dir)
        self.project_configuration = config
        self._registered = []
        self._save_hooks, self._load_hooks = OrderedDict(), OrderedDict()

    @property
    def project_dir(self) -> Path | None:
        """The directory of the project."""
        given = self.project_configuration.project_dir
        return None if given is None else Path(given)

    @property
    def save_iteration(self) -> int:
        """The number that the next automatically named checkpoint gets."""
        if self.project_dir is None:
            return 0
        last = next(reversed(storage.numbered(self._folder(), _PREFIX)), None)
        return 0 if last is None else int(last.name.removeprefix(_PREFIX)) + 1

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Have further objects saved and loaded with the state.

        Parameters
        ----------
        *objects
            With methods ``state_dict`` and ``load_state_dict``.

        Examples
        --------
        >>> average = torch.optim.swa_utils.AveragedModel(model)
        >>> accelerator.register_for_checkpointing(average)
        """
        for each in objects:
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise TypeError(
                    f"{each!r} cannot be saved: it has no `state_dict` and `load_state_dict`"
                )
        self._registered.extend(objects)

    def register_save_state_pre_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Have a function called by `save_state`, on every rank, before weights are written.

        Parameters
        ----------
        hook : callable
            Called as ``hook(models, weights, output_dir)``: the prepared models, a list of their
            state dicts, and the directory to which the checkpoint is being written. A state dict
            that it takes out of the list is not written. Of sharded models there are none in it.

        Returns
        -------
        RemovableHandle
            Its ``remove()`` takes the function back.

        Examples
        --------
        >>> def note(models, weights, output_dir):
        ...     print(len(models), list(weights[0]))
        >>> handle = accelerator.register_save_state_pre_hook(note)
        >>> path = accelerator.save_state("noted")
        1 ['weight', 'bias']
        >>> handle.remove()
        """
        return _added(hook, self._save_hooks)

    def register_load_state_pre_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Have a function called by `load_state`, on every rank, before weights are read.

        Parameters
        ----------
        hook : callable
            Called as ``hook(models, input_dir)``: a list of the prepared models, and the
            checkpoint's directory. A model that it takes out of the list is not read, unless it was
            saved in shards.

        Returns
        -------
        RemovableHandle
            Its ``remove()`` takes the function back.

        Examples
        --------
        >>> path = accelerator.save_state("noted")
        >>> def note(models, input_dir):
        ...     print(len(models), input_dir == str(path))
        >>> handle = accelerator.register_load_state_pre_hook(note)
        >>> path = accelerator.load_state("noted")
        1 True
        >>> handle.remove()
        """
        return _added(hook, self._load_hooks)

    def save_state(
        self, output_dir: str | Path | None = None, safe_serialization: bool = True
    ) -> Path:
        """Write everything that is needed to go on from here: a collective.

        Models, optimizers, schedulers, scaler, the dataloaders' positions, random numbers of every
        rank, registered objects. Within an accumulation window the gradients are not saved: save
        where `sync_gradients` is true. A kill at any moment leaves the last complete checkpoint.

        Parameters
        ----------
        output_dir : str or Path, optional
            A directory of its own. None with automatic naming: the next number.
        safe_serialization : bool
            Write whole models with safetensors; False takes `torch.save`.

        Returns
        -------
        Path
            The directory.

        Examples
        --------
        >>> accelerator.save_state("after_warm_up").name
        'after_warm_up'
        """
        self._refuse_engines()
        final = self._agree(lambda: self._next_place(output_dir))
        partial = self._agree(lambda: storage.begin(final))
        weights = self._weights()
        states = weights.states()
        left = list(states.values())
        for hook in list(self._save_hooks.values()):
            hook(self._models, left, str(partial))
        wanted = {n: state for n, state in states.items() if _among(state, left)}
        optimizers = weights.save(partial, wanted, safe=safe_serialization)
        torch.save(random_state(), partial / f"random_{self.state.process_index}.pt")
        if self.state.is_main_process:
            self._write_shared(partial, optimizers)
        self.state.wait_for_everyone()
        self._agree(lambda: self._finish(final, numbered=output_dir is None))
        return final

    def load_state(self, input_dir: str | Path | None = None) -> Path:
        """Go on from a checkpoint: a collective. Prepare and register the same things before.

        The number of ranks may differ, and how models are laid out over them. Ranks that the
        checkpoint has no random numbers for keep theirs. Only load what you trust: reading it can
        run code.

        Prepared dataloaders go on by themselves, in the same order, after the last batch that was
        used. ``skip_first_batches(loader, number)`` instead, as in Accelerate's documentation,
        says where to go on in that epoch; the number counts from the epoch's start.

        Parameters
        ----------
        input_dir : str or Path, optional
            A checkpoint. None: the latest automatically named one.

        Returns
        -------
        Path
            The directory it was read from.

        Raises
        ------
        FileNotFoundError
            There is no complete checkpoint.
        ValueError
            It was saved with other numbers of models, optimizers and so on.

        Examples
        --------
        >>> path = accelerator.save_state("best")
        >>> accelerator.load_state("best") == path
        True
        """
        self._refuse_engines()
        source = self._agree(lambda: self._complete(input_dir))
        self._check(json.loads((source / storage.MANIFEST).read_text()), source)
        models, left = self._models, self._models
        for hook in list(self._load_hooks.values()):
            hook(left, str(source))
        wanted = [number for number, model in enumerate(models) if _among(model, left)]
        # Schedulers and registered objects may hold anything: a checkpoint is trusted like code.
        # Rank 0 wrote it from its device; an optimizer moves its state to where its parameters are.
        training = torch.load(source / "training.pt", map_location="cpu", weights_only=False)
        self._weights().load(source, training["optimizers"], wanted)
        for scheduler, state in zip(self._schedulers, training["schedulers"], strict=True):
            scheduler.load_state_dict(state)
        for loader, state in zip(self._dataloaders, training["dataloaders"], strict=True):
            loader.load_state_dict(state)
        if self.scaler is not None and training["scaler"] is not None:
            self.scaler.load_state_dict(training["scaler"])
        self._accumulation.load_state_dict(training["accumulation"])
        for each, state in zip(self._registered, training["registered"], strict=True):
            each.load_state_dict(state)
        own = source / f"random_{self.state.process_index}.pt"
        if own.exists():
            set_random_state(torch.load(own, weights_only=True))
        return source

    def _refuse_engines(self) -> None:
        if self.state.distributed_type is DistributedType.DEEPSPEED:
            raise NotImplementedError(
                "save_state and load_state do not know DeepSpeed's shards: use the engine's own "
                "model.save_checkpoint(directory) and model.load_checkpoint(directory)"
            )
        if self.state.distributed_type is DistributedType.MEGATRON_LM:
            raise NotImplementedError(
                "save_state and load_state do not know Megatron-LM's parts of models: use "
                "megatron.core.dist_checkpointing"
            )

    def _weights(self) -> Weights:
        # Imported here: torch's checkpoints take longer to import than all the rest of nbstate.
        from nbstate.train.weights import Weights

        return Weights(self._models, [each.optimizer for each in self._optimizers], self.state)

    def _write_shared(self, partial: Path, optimizers: list[Any]) -> None:
        """What one rank writes for all."""
        training = {
            "optimizers": optimizers,
            "schedulers": [each.state_dict() for each in self._schedulers],
            "dataloaders": [each.state_dict() for each in self._dataloaders],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "accumulation": self._accumulation.state_dict(),
            "registered": [each.state_dict() for each in self._registered],
        }
        torch.save(training, partial / "training.pt")
        manifest = {**self._counts(), "num_processes": self.state.num_processes}
        (partial / storage.MANIFEST).write_text(json.dumps(manifest, indent=2))

    def _counts(self) -> dict[str, int]:
        return {
            "models": len(self._models),
            "optimizers": len(self._optimizers),
            "schedulers": len(self._schedulers),
            "dataloaders": len(self._dataloaders),
            "registered": len(self._registered),
        }

    def _check(self, manifest: dict[str, int], source: Path) -> None:
        differing = [
            f"{manifest[name]} {name}, not {count}"
            for name, count in self._counts().items()
            if manifest[name] != count
        ]
        if differing:
            raise ValueError(
                f"{source} was saved with {'; '.join(differing)}; prepare and register the same "
                f"things, in the same order, before load_state"
            )

    def _agree(self, find: Callable[[], Found]) -> Found:
        """What the main process finds, or its exception, on every rank."""
        found: Found = self.state.on_main_process(find, share=True)()
        return found

    def _folder(self) -> Path:
        if self.project_dir is None:
            raise ValueError(
                "where to? Give save_state and load_state a directory, or the Accelerator a "
                "project_dir and ProjectConfiguration(automatic_checkpoint_naming=True)"
            )
        return self.project_dir / "checkpoints"

    def _next_place(self, given: str | Path | None) -> Path:
        if given is not None:
            return Path(given).absolute()
        if not self.project_configuration.automatic_checkpoint_naming:
            raise ValueError(
                "save_state needs a directory, or "
                "ProjectConfiguration(automatic_checkpoint_naming=True)"
            )
        return self._folder().absolute() / f"{_PREFIX}{self.save_iteration}"

    def _finish(self, final: Path, *, numbered: bool) -> None:
        storage.commit(final)
        limit = self.project_configuration.total_limit
        if limit is not None and numbered:
            for each in storage.numbered(final.parent, _PREFIX)[:-limit]:
                storage.remove(each)

    def _complete(self, given: str | Path | None) -> Path:
        if given is None:
            places = storage.numbered(self._folder(), _PREFIX)
        else:
            places = [Path(given).absolute()]
            storage.recover(places[0])
        for place in reversed(places):
            if (place / storage.MANIFEST).exists():
                return place
        raise FileNotFoundError(f"there is no checkpoint in {given or self._folder()}")


def _added(
    hook: Callable[..., object], hooks: OrderedDict[int, Callable[..., object]]
) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _among(thing: object, things: list[Any]) -> bool:
    """Whether a list has this very thing; state dicts are not to be compared by their tensors."""
    return any(thing is each for each in things)
