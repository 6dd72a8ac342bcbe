"""Saving and loading the whole of a training: `save_state`, `load_state`.

checkpoint_3/
    checkpoint.json        what is in here; the mark of a complete checkpoint
    model.safetensors      each model's weights (model_1.safetensors, ...), or
    sharded/               weights and optimizer state in shards (torch.distributed.checkpoint)
    training.pt            optimizers, schedulers, scaler, positions in the data, registered objects
    random_0.pt            random numbers, one file for each rank
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

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

    def _init_checkpoints(self, project_dir: str | Path | None, config: Any) -> None:
        config = adopt(ProjectConfiguration, config, "project_config") or ProjectConfiguration()
        if project_dir is not None:
            config = dataclasses.replace(config, project_dir=project_dir)
        self.project_configuration = config
        self._registered = []

    @property
    def project_dir(self) -> Path | None:
        """The directory of the project."""
        given = self.project_configuration.project_dir
        return None if given is None else Path(given)

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

    def save_state(self, output_dir: str | Path | None = None) -> Path:
        """Write everything that is needed to go on from here: a collective.

        Models, optimizers, schedulers, scaler, the dataloaders' positions, random numbers of every
        rank, registered objects. Within an accumulation window the gradients are not saved: save
        where `sync_gradients` is true. A kill at any moment leaves the last complete checkpoint.

        Parameters
        ----------
        output_dir : str or Path, optional
            A directory of its own. None with automatic naming: the next number.

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
        optimizers = self._weights().save(partial)
        torch.save(random_state(), partial / f"random_{self.state.process_index}.pt")
        if self.state.is_main_process:
            self._write_shared(partial, optimizers)
        self.state.wait_for_everyone()
        self._agree(lambda: self._finish(final, numbered=output_dir is None))
        return final

    def load_state(self, input_dir: str | Path | None = None) -> Path:
        """Go on from a checkpoint: a collective. Prepare and register the same things before.

        The number of ranks may differ. Ranks that the checkpoint has no random numbers for keep
        theirs. Only load what you trust: reading it can run code.

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
        # Schedulers and registered objects may hold anything: a checkpoint is trusted like code.
        training = torch.load(source / "training.pt", weights_only=False)
        self._weights().load(source, training["optimizers"])
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

    def save(self, obj: Any, f: str | Path) -> None:
        """Write an object with `torch.save`, on the main process only and as a whole or not at all.

        Parameters
        ----------
        obj : object
            What to write.
        f : str or Path
            The file.

        Examples
        --------
        >>> accelerator.save(model.state_dict(), "weights.pt")
        """
        if self.state.is_main_process:
            with storage.replacing(Path(f)) as partial:
                torch.save(obj, partial)

    def _refuse_engines(self) -> None:
        if self.state.distributed_type is DistributedType.DEEPSPEED:
            raise NotImplementedError(
                "save_state and load_state do not know DeepSpeed's shards: use the engine's own "
                "model.save_checkpoint(directory) and model.load_checkpoint(directory)"
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
        last = next(reversed(storage.numbered(self._folder(), _PREFIX)), None)
        number = 0 if last is None else int(last.name.removeprefix(_PREFIX)) + 1
        return self._folder().absolute() / f"{_PREFIX}{number}"

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
