"""Configuration dataclasses, named as Accelerate names them."""

from nbstate.plugins.base import Plugin, adopt
from nbstate.plugins.engines import DeepSpeedPlugin, MegatronLMPlugin, TorchDynamoPlugin
from nbstate.plugins.sharding import (
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    TorchTensorParallelPlugin,
)
from nbstate.plugins.training import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
)

__all__ = [
    "AutocastKwargs",
    "DataLoaderConfiguration",
    "DeepSpeedPlugin",
    "DistributedDataParallelKwargs",
    "FullyShardedDataParallelPlugin",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "MegatronLMPlugin",
    "ParallelismConfig",
    "Plugin",
    "TorchDynamoPlugin",
    "TorchTensorParallelPlugin",
    "adopt",
]
