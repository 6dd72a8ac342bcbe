"""Accelerator: models, optimizers, schedulers and data made ready for every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from nbstate.mistakes import told_at_the_call
from nbstate.operations import send_to_device
from nbstate.plugins import DataLoaderConfiguration, GradientAccumulationPlugin, adopt
from nbstate.state import AcceleratorState, DistributedType, GradientState
from nbstate.train import parallel, precision
from nbstate.train.accumulation import Accumulation
from nbstate.train.checkpoint import Checkpoints
from nbstate.train.communication import Communication
from nbstate.train.compiling import compile_model
from nbstate.train.control import Control
from nbstate.train.data import PreparedLoader, prepare_data_loader
from nbstate.train.engines import EngineDriven, initialize_deepspeed, initialize_megatron
from nbstate.train.handlers import Handlers
from nbstate.train.loop import Loop
from nbstate.train.optimizer import AcceleratedOptimizer
from nbstate.train.scheduler import AcceleratedScheduler
from nbstate.train.trackers import Tracking

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nbstate.plugins import (
        DeepSpeedPlugin,
        FullyShardedDataParallelPlugin,
        MegatronLMPlugin,
        ParallelismConfig,
        TorchDynamoPlugin,
        TorchTensorParallelPlugin,
    )
    from nbstate.train.project import ProjectConfiguration

_WRAPPERS = (AcceleratedOptimizer, AcceleratedScheduler, PreparedLoader)


class Accelerator(Loop, Communication, Control, Checkpoints, Tracking):
    """A training loop's one object: prepares what it is given and moves the states.

    The loop stays the user's, and runs unchanged on one process and on many, on any device. Has all
    of `PartialState`'s attributes and methods.

    Parameters
    ----------
    mixed_precision : {'no', 'fp16', 'bf16', 'fp8'}, optional
        What forward passes compute in; None takes what the launcher was told, else 'no'.
    gradient_accumulation_steps : int
        Batches whose gradients make one step; see `GradientAccumulationPlugin` for more.
    cpu : bool
        Stay on the CPU.
    device_placement : bool
        Move models and batches to `device`.
    split_batches : bool
        Short for ``DataLoaderConfiguration(split_batches=True)``.
    dataloader_config : DataLoaderConfiguration, optional
        How data is dealt out to the ranks.
    gradient_accumulation_plugin : GradientAccumulationPlugin, optional
        Instead of `gradient_accumulation_steps`.
    fsdp_plugin, torch_tp_plugin, deepspeed_plugin, megatron_lm_plugin, parallelism_config
        How models are laid out over the ranks; without any, every rank has a copy (DDP).
    dynamo_plugin : TorchDynamoPlugin, optional
        Compile models.
    kwargs_handlers : sequence
        `AutocastKwargs`, `GradScalerKwargs`, `InitProcessGroupKwargs`,
        `DistributedDataParallelKwargs`: one of each kind at most.
    step_scheduler_with_optimizer : bool
        Schedulers keep a single process's pace; False passes each call of theirs on as it is.
    log_with : str, Tracker or sequence of them
        Where `log` writes: 'tensorboard', 'wandb', 'jsonl', 'all' or trackers of one's own.
    project_dir : str or Path, optional
        Where logs and automatically named checkpoints go.
    project_config : ProjectConfiguration, optional
        More about those.

    Examples
    --------
    >>> accelerator = Accelerator(gradient_accumulation_steps=2)
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    >>> loader = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2)
    >>> model, optimizer, scheduler, loader = accelerator.prepare(
    ...     model, optimizer, scheduler, loader
    ... )
    >>> for batch in loader:
    ...     with accelerator.accumulate(model):
    ...         loss = model(batch).mean()
    ...         accelerator.backward(loss)
    ...         optimizer.step()
    ...         scheduler.step()
    ...         optimizer.zero_grad()
    """

    def __init__(
        self,
        mixed_precision: str | None = None,
        *,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        device_placement: bool = True,
        split_batches: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        torch_tp_plugin: TorchTensorParallelPlugin | None = None,
        deepspeed_plugin: DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None = None,
        megatron_lm_plugin: MegatronLMPlugin | None = None,
        parallelism_config: ParallelismConfig | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        kwargs_handlers: Sequence[Any] = (),
        step_scheduler_with_optimizer: bool = True,
        log_with: Any = (),
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
    ) -> None:
        with told_at_the_call():
            handlers = Handlers.sorted(kwargs_handlers)
            self.state = AcceleratorState(
                mixed_precision=mixed_precision,
                cpu=cpu,
                fsdp_plugin=fsdp_plugin,
                torch_tp_plugin=torch_tp_plugin,
                deepspeed_plugin=deepspeed_plugin,
                megatron_lm_plugin=megatron_lm_plugin,
                parallelism_config=parallelism_config,
                dynamo_plugin=dynamo_plugin,
                **handlers.process_group,
            )
            engine, steps = self.state.deepspeed_plugin, gradient_accumulation_steps
            if engine is not None and steps == 1:
                steps = engine.gradient_accumulation_steps
            self.gradient_state = GradientState(
                _accumulation_plugin(gradient_accumulation_plugin, steps)
            )
            self.dataloader_config = _data_config(dataloader_config, split_batches)
            self._init_tracking(log_with)
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self._accumulation = Accumulation(self.gradient_state)
        self._layout = parallel.Layout(self.state, handlers.ddp)
        self._precision = precision.Precision(
            self.state.mixed_precision, self.state.device, handlers.autocast, handlers.scaler
        )
        self._prepared: dict[int, tuple[Any, Any]] = {}
        self._triggered, self._stop_reason, self._stopped = False, None, {}
        self._init_checkpoints(project_dir, project_config)

    def __repr__(self) -> str:
        kinds = ("models", "optimizers", "schedulers", "dataloaders")
        prepared = ", ".join(f"{len(getattr(self, f'_{kind}'))} {kind}" for kind in kinds)
        return (
            f"<Accelerator: process {self.process_index} of {self.num_processes} on {self.device}, "
            f"precision {self.mixed_precision}, window of {self.gradient_accumulation_steps}; "
            f"prepared {prepared}>"
        )

    def prepare(self, *args: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Models, optimizers, schedulers and dataloaders, ready for this rank.

        All ranks must prepare the same things in the same order. Anything else comes back as it is,
        moved to the device where it can be.

        Parameters
        ----------
        *args
            Any number of things in any order; a model comes with its optimizers in one call or in
            an earlier one.
        device_placement : sequence of bool, optional
            For each argument, whether it is moved to the device; None takes the default.

        Returns
        -------
        the prepared thing, or a tuple of them in the order given

        Examples
        --------
        >>> model = accelerator.prepare(torch.nn.Linear(1, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        >>> optimizer, scheduler = accelerator.prepare(optimizer, scheduler)
        """
        moves = device_placement or [None] * len(args)
        if len(moves) != len(args):
            raise ValueError(
                f"device_placement has {len(moves)} values for {len(args)} things to prepare"
            )
        moved = [self.device_placement if move is None else move for move in moves]
        if self.state.distributed_type is DistributedType.DEEPSPEED:
            self._hand_to_deepspeed(args)
        prepared = list(args)
        # Optimizers need their model's final parameters, schedulers their optimizer's wrapper.
        for kind in (nn.Module, torch.optim.Optimizer, object):
            for position, thing in enumerate(args):
                if isinstance(thing, kind):
                    prepared[position] = self._prepare_one(thing, moved[position])
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _prepare_one(self, thing: Any, move: bool) -> Any:
        """What becomes of one thing; the same for a thing prepared before, and for its wrapper."""
        if id(thing) in self._prepared:
            return self._prepared[id(thing)][1]
        prepared = self._made_of(thing, move)
        if isinstance(prepared, (nn.Module, *_WRAPPERS)):
            self._remember(thing, prepared)
        return prepared

    def _made_of(self, thing: Any, move: bool) -> Any:
        if isinstance(thing, nn.Module):
            return self._prepare_model(thing, move)
        if isinstance(thing, torch.optim.Optimizer):
            return self._prepare_optimizer(thing)
        if isinstance(thing, LRScheduler):
            return self._prepare_scheduler(thing)
        if isinstance(thing, DataLoader):
            device = self.device if move else None
            return prepare_data_loader(thing, self._layout.data, self.dataloader_config, device)
        return send_to_device(thing, self.device) if move and hasattr(thing, "to") else thing

    def _prepare_model(self, model: nn.Module, move: bool) -> nn.Module:
        if move:
            model.to(self.device)
        if not any(True for _ in model.parameters()):
            return model  # a loss function, say
        self._precision.wrap(model)
        if self.state.distributed_type is DistributedType.MEGATRON_LM:
            placed: nn.Module = initialize_megatron(self.state, model)
            return placed
        return compile_model(self._layout.place(model), self.state.dynamo_plugin)

    def _prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> AcceleratedOptimizer:
        self._layout.renew(optimizer)
        return AcceleratedOptimizer(optimizer, self._accumulation, self.scaler)

    def _prepare_scheduler(self, scheduler: LRScheduler) -> AcceleratedScheduler:
        optimizers = self._optimizers or self._all(EngineDriven)
        followed = [each for each in optimizers if scheduler.optimizer in (each, each.optimizer)]
        return AcceleratedScheduler(
            scheduler,
            followed or optimizers,
            self._accumulation,
            step_with_optimizer=self.step_scheduler_with_optimizer,
        )

    def _hand_to_deepspeed(self, args: Sequence[Any]) -> None:
        plugin = self.state.deepspeed_plugin
        assert plugin is not None
        models = [each for each in args if isinstance(each, nn.Module)]
        optimizers = [each for each in args if isinstance(each, torch.optim.Optimizer)]
        loaders = [each for each in args if isinstance(each, DataLoader)]
        if not models and not optimizers:
            return  # further data, say
        if len(models) != 1 or len(optimizers) > 1:
            raise ValueError(
                f"DeepSpeed trains one model with one optimizer, and was given {len(models)} and "
                f"{len(optimizers)}"
            )
        engine, driven = initialize_deepspeed(
            plugin,
            self._precision.wrap(models[0]),
            next(iter(optimizers), None),
            next((each.batch_size for each in loaders), None),
            self.num_processes,
            self.gradient_accumulation_steps,
        )
        self._remember(models[0], engine)
        for optimizer in optimizers:
            self._remember(optimizer, EngineDriven(optimizer, driven, engine))


def _accumulation_plugin(given: Any, steps: int) -> GradientAccumulationPlugin:
    plugin = adopt(GradientAccumulationPlugin, given, "gradient_accumulation_plugin")
    if plugin is None:
        return GradientAccumulationPlugin(num_steps=steps)
    if steps not in (1, plugin.num_steps):
        raise ValueError(
            f"gradient_accumulation_steps={steps} and the plugin's num_steps={plugin.num_steps} "
            f"differ; give one of them"
        )
    return plugin


def _data_config(given: Any, split_batches: bool) -> DataLoaderConfiguration:
    config = adopt(DataLoaderConfiguration, given, "dataloader_config")
    if config is None:
        return DataLoaderConfiguration(split_batches=split_batches)
    if split_batches and not config.split_batches:
        raise ValueError("split_batches=True is not what dataloader_config says; set it there")
    return config
