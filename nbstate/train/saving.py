"""Saving what was trained, for other programs to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbstate.state import DistributedType
from nbstate.train import files, parallel
from nbstate.train.core import Core

if TYPE_CHECKING:
    from torch import nn


class Saving(Core):
    """The part of an Accelerator that writes models and single objects."""

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The weights of a model by name, whole also where ranks hold parts of it.

        Parameters
        ----------
        model : Module
            As it came from `prepare`, or any other.
        unwrap : bool
            False gives the names that they have inside of what `prepare` put around the model.

        Returns
        -------
        dict
            Of a sharded or cut model, for which this is a collective: on the main process, on the
            CPU; the others get an empty one.

        Examples
        --------
        >>> list(accelerator.get_state_dict(model))
        ['weight', 'bias']
        """
        given, _ = self._prepared.get(id(model), (model, model))
        inner = parallel.unwrap(given)
        self._refuse_parts_of_engines()
        if parallel.is_sharded(inner):
            # Imported here: torch's checkpoints take longer to import than the rest of nbstate.
            from nbstate.train.weights import whole_state_dict

            return whole_state_dict(inner)
        state: dict[str, Any] = (inner if unwrap else model).state_dict()
        return state

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | Path,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write a model's weights, on the main process, as Accelerate and transformers read them.

        All ranks are to call it where the model is sharded or cut: their parts are put together.

        Parameters
        ----------
        model : Module
            As it came from `prepare`, or any other.
        save_directory : str or Path
            Where ``model.safetensors`` is written, or parts of it and an index. Made where it is
            missing; an earlier model's parts in it are replaced.
        max_shard_size : int or str
            How large a part may be, in bytes or as "5GB"; a larger weight has a part of its own.
        safe_serialization : bool
            False writes ``pytorch_model.bin`` by `torch.save`.

        Raises
        ------
        NotADirectoryError
            There is a file of that name.

        Examples
        --------
        >>> accelerator.save_model(model, "trained")
        >>> import os
        >>> os.listdir("trained")
        ['model.safetensors']
        """
        directory = Path(save_directory)
        if directory.is_file():
            raise NotADirectoryError(f"save_directory={str(directory)!r} is a file")
        limit = files.size_of(max_shard_size)
        state = self.get_state_dict(model)
        if self.state.is_main_process:
            files.write_model(state, directory, limit, safe=safe_serialization)

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = False) -> None:
        """Write an object with `torch.save`, on the main process only and as a whole or not at all.

        Parameters
        ----------
        obj : object
            What to write.
        f : str or Path
            The file.
        safe_serialization : bool
            Write it with safetensors; it has to be a dict of tensors.

        Examples
        --------
        >>> accelerator.save(model.state_dict(), "weights.pt")
        """
        if self.state.is_main_process:
            files.write(obj, Path(f), safe=safe_serialization)

    def _refuse_parts_of_engines(self) -> None:
        plugin = self.state.deepspeed_plugin
        if plugin is not None and plugin.zero_stage == 3:
            raise NotImplementedError(
                "in DeepSpeed's stage 3 only its engine can put the weights together: use "
                "model.save_16bit_model(directory), with "
                "'stage3_gather_16bit_weights_on_model_save' in the configuration"
            )
        if self.state.distributed_type is DistributedType.MEGATRON_LM:
            raise NotImplementedError(
                "only Megatron-LM can put the parts of its models together: use "
                "megatron.core.dist_checkpointing"
            )
