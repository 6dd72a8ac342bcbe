"""What an Accelerator was told, under the names that Accelerate gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbstate.train.core import Core

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from nbstate.plugins import DataLoaderConfiguration, DeepSpeedPlugin, ParallelismConfig


class Settings(Core):
    """The part of an Accelerator that shows its settings."""

    dataloader_config: DataLoaderConfiguration

    @property
    def split_batches(self) -> bool:
        """Whether a dataloader's batch size is that of all ranks together."""
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 reads the data for all; None: for iterable datasets only."""
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether samples are repeated until all ranks have as many.

        Settable, for dataloaders prepared from then on.
        """
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether data is shuffled by a seed and the epoch."""
        return self.dataloader_config.use_seedable_sampler

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether torchdata's dataloader is used."""
        return self.dataloader_config.use_stateful_dataloader

    @property
    def non_blocking(self) -> bool:
        """Whether batches are moved to the device without waiting."""
        return self.dataloader_config.non_blocking

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        """The active DeepSpeed plugin, None without DeepSpeed."""
        return self.state.deepspeed_plugin

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """How many ranks there are in each direction."""
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> DeviceMesh | None:
        """The ranks as a mesh, where a `parallelism_config` was given to several processes."""
        return self.state.device_mesh

    @property
    def is_fsdp2(self) -> bool:
        """Whether parameters are sharded by FSDP2."""
        return self.state.is_fsdp2

    @property
    def multi_device(self) -> bool:
        """Whether there are several processes, each with an accelerator and the whole model."""
        kind = self.state.distributed_type.name
        return kind.startswith("MULTI_") and kind != "MULTI_CPU"

    @property
    def should_save_model(self) -> bool:
        """Whether this rank takes part in saving: all do, and the main process writes."""
        return True
