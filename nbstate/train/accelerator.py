"""Accelerator: models, optimizers, schedulers and data made ready for every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbstate.mistakes import told_at_the_call
from nbstate.plugins import (
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    TorchDynamoPlugin,
    adopt,
)
from nbstate.state import AcceleratorState, GradientState
from nbstate.train import parallel, precision
from nbstate.train.accumulation import Accumulation
from nbstate.train.checkpoint import Checkpoints
from nbstate.train.communication import Communication
from nbstate.train.control import Control
from nbstate.train.elsewhere import Elsewhere
from nbstate.train.handlers import Handlers
from nbstate.train.loop import Loop
from nbstate.train.preparing import Preparation
from nbstate.train.randomness import checked_kinds
from nbstate.train.saving import Saving
from nbstate.train.settings import Settings
from nbstate.train.trackers import Tracking

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import NoReturn

    from nbstate.plugins import (
        DeepSpeedPlugin,
        FullyShardedDataParallelPlugin,
        MegatronLMPlugin,
        ParallelismConfig,
        TorchTensorParallelPlugin,
    )
    from nbstate.train.project import ProjectConfiguration


class Accelerator(
    Preparation, Loop, Communication, Control, Checkpoints, Saving, Tracking, Settings, Elsewhere
):
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
    deepspeed_plugins : dict, optional
        The same as `deepspeed_plugin`.
    dynamo_plugin : TorchDynamoPlugin, optional
        Compile models.
    dynamo_backend : str, optional
        Short for ``TorchDynamoPlugin(backend=...)``.
    rng_types : sequence of {'generator', 'torch', 'cuda', 'xpu'}, optional
        Random numbers that all ranks share, rank 0's, from the start of each epoch of a prepared
        dataloader. Its own ('generator') are always shared: that is the order of the samples.
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
        deepspeed_plugins: DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        dynamo_backend: str | None = None,
        rng_types: Iterable[str] | None = None,
        kwargs_handlers: Sequence[Any] | None = None,
        step_scheduler_with_optimizer: bool = True,
        log_with: Any = (),
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
    ) -> None:
        with told_at_the_call():
            handlers = Handlers.sorted(kwargs_handlers or ())
            self.rng_types = checked_kinds(rng_types)
            self.state = AcceleratorState(
                mixed_precision=mixed_precision,
                cpu=cpu,
                fsdp_plugin=fsdp_plugin,
                torch_tp_plugin=torch_tp_plugin,
                deepspeed_plugin=_one_of(
                    deepspeed_plugin=deepspeed_plugin, deepspeed_plugins=deepspeed_plugins
                ),
                megatron_lm_plugin=megatron_lm_plugin,
                parallelism_config=parallelism_config,
                dynamo_plugin=_one_of(
                    dynamo_plugin=dynamo_plugin, dynamo_backend=_compiler(dynamo_backend)
                ),
                **handlers.process_group,
            )
            steps = _steps(gradient_accumulation_steps, self.state.deepspeed_plugin)
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
        self._prepared = {}
        self._triggered, self._stop_reason, self._stopped = False, None, {}
        self._init_checkpoints(project_dir, project_config)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Accelerator belongs to the process that made it; return what was trained instead: "
            "accelerator.unwrap_model(model), or accelerator.get_state_dict(model) where the model "
            "is sharded"
        )

    def __repr__(self) -> str:
        kinds = ("models", "optimizers", "schedulers", "dataloaders")
        prepared = ", ".join(f"{len(getattr(self, f'_{kind}'))} {kind}" for kind in kinds)
        return (
            f"<Accelerator: process {self.process_index} of {self.num_processes} on {self.device}, "
            f"precision {self.mixed_precision}, window of {self.gradient_accumulation_steps}; "
            f"prepared {prepared}>"
        )


def _steps(asked: int, engine: DeepSpeedPlugin | None) -> int:
    said = None if engine is None else engine.gradient_accumulation_steps
    if said is None:
        return asked
    if asked not in (1, said):
        raise ValueError(
            f"gradient_accumulation_steps={asked} and DeepSpeed's {said} differ; give one of them"
        )
    return said


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


def _one_of(**given: Any) -> Any:
    """The one argument of two that was given, None without any."""
    said = {name: value for name, value in given.items() if value is not None}
    if len(said) > 1:
        raise ValueError(f"{' and '.join(said)} say the same thing; give one of them")
    return next(iter(said.values()), None)


def _compiler(backend: Any) -> TorchDynamoPlugin | None:
    if backend is None:
        return None
    return TorchDynamoPlugin(backend=str(getattr(backend, "value", backend)).lower())


def _data_config(given: Any, split_batches: bool) -> DataLoaderConfiguration:
    config = adopt(DataLoaderConfiguration, given, "dataloader_config")
    if config is None:
        return DataLoaderConfiguration(split_batches=split_batches)
    if split_batches and not config.split_batches:
        raise ValueError("split_batches=True is not what dataloader_config says; set it there")
    return config
