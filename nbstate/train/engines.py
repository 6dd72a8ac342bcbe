"""Handing a model over to DeepSpeed or Megatron-LM, which are packages of their own."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import torch

from nbstate.state import AcceleratorState

if TYPE_CHECKING:
    from nbstate.plugins import DeepSpeedPlugin

_INSTALL = {
    "deepspeed": "pip install deepspeed",
    "megatron.core": "pip install megatron-core",
}


def initialize_deepspeed(
    plugin: DeepSpeedPlugin,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch_size: int | None,
    num_processes: int,
    window: int,
) -> tuple[Any, Any]:
    """DeepSpeed's engine for a model, with its optimizer; `window` batches make a step.

    Schedulers stay with the loop: the engine would take one step of theirs for each of its own,
    however many ranks there are.

    ``"auto"`` in the configuration's batch sizes is filled in from the prepared dataloader. With
    fp16 it is the engine that scales losses.

    Raises
    ------
    ImportError
        DeepSpeed is not installed; the line that installs it is given.
    ValueError
        A batch size is 'auto' and there is no dataloader to tell it; or the precision is fp16 and
        the configuration turns it off.
    """
    deepspeed = _package("deepspeed", "DeepSpeedPlugin")
    config = dict(plugin.deepspeed_config)
    micro = config.get("train_micro_batch_size_per_gpu", "auto")
    if micro == "auto":
        if batch_size is None:
            raise ValueError(
                "DeepSpeed has to know the batch size: prepare a dataloader together with the "
                "model, or set 'train_micro_batch_size_per_gpu' in the configuration"
            )
        micro = config["train_micro_batch_size_per_gpu"] = batch_size
    config["gradient_accumulation_steps"] = window
    if config.get("train_batch_size", "auto") == "auto":
        config["train_batch_size"] = micro * num_processes * window
    _set_precision(config, AcceleratorState().mixed_precision)
    engine, driven, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine, driven


def _set_precision(config: dict[str, Any], precision: str) -> None:
    for kind in ("fp16", "bf16"):
        if config.get(kind, {}).get("enabled") == "auto":
            config[kind] = {**config[kind], "enabled": precision == kind}
    if precision == "fp16" and not config.setdefault("fp16", {"enabled": True}).get("enabled"):
        raise ValueError(
            "mixed_precision='fp16' needs losses that are scaled, and the configuration's 'fp16' "
            "section does not turn that on: set its 'enabled' to true or leave the section out"
        )


def drive(engine: Any, loss: torch.Tensor, *, ends_window: bool, **kwargs: Any) -> None:
    """The backward pass and, at the end of a window, the step: DeepSpeed's engine does both."""
    engine.set_gradient_accumulation_boundary(is_boundary=ends_window)
    engine.backward(loss, scale_wrt_gas=False, **kwargs)  # the loss is divided already
    engine.step()


def clipped_norm(engine: Any, max_norm: float, norm_type: float) -> torch.Tensor | None:
    """The norm that gradients had in the engine's last step, which clips as it was configured.

    None where the engine does not tell it, as in stage 0 without fp16.

    Raises
    ------
    ValueError
        Asked for is something else than what the configuration says.
    """
    clipping = engine.gradient_clipping() or math.inf
    if (max_norm, norm_type) != (clipping, 2.0):
        raise ValueError(
            f"DeepSpeed's engine clips in its own step, to a 2-norm of {clipping:g} here, and not "
            f"to max_norm={max_norm:g} of norm_type={norm_type:g}: set "
            f"DeepSpeedPlugin(gradient_clipping=...)"
        )
    norm = engine.get_global_grad_norm()
    return None if norm is None else torch.as_tensor(norm)


class EngineDriven:
    """An optimizer that DeepSpeed's engine steps; the loop's own calls do nothing.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer
        The one that was given.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, driven: Any) -> None:
        self.optimizer, self._driven = optimizer, driven

    @property
    def step_was_skipped(self) -> bool:
        """Whether the engine left its last step out, because gradients overflowed."""
        # The engine's own `was_step_applied` is about the last batch, also within a window.
        return bool(getattr(self._driven, "overflow", False))

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the engine has stepped in the backward pass."""

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the engine forgets gradients after its step."""

    def __getattr__(self, name: str) -> Any:
        if name == "_driven":  # not there yet, while this is unpickled
            raise AttributeError(name)
        return getattr(self._driven, name)


def initialize_megatron(state: AcceleratorState, model: torch.nn.Module) -> Any:
    """Megatron's data parallel model, after its groups of ranks have been set up.

    Raises
    ------
    ImportError
        Megatron's core is not installed; the line that installs it is given.
    TypeError
        The model is none of Megatron's: those carry their ``config``.
    NotImplementedError
        The precision is fp16.
    """
    parallel_state = _package("megatron.core.parallel_state", "MegatronLMPlugin")
    plugin = state.megatron_lm_plugin
    assert plugin is not None
    if state.mixed_precision == "fp16":
        raise NotImplementedError(
            "mixed_precision='fp16': Megatron-LM's optimizer scales gradients by itself, so leave "
            "it out and say fp16 in the configs of model and optimizer, or use 'bf16'"
        )
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=plugin.tp_degree,
            pipeline_model_parallel_size=plugin.pp_degree,
            context_parallel_size=plugin.context_parallel_size,
            expert_model_parallel_size=plugin.expert_model_parallel_size,
        )
    if not hasattr(model, "config"):
        raise TypeError(
            f"{type(model).__name__} is no model of Megatron's (it has no `config`); build it from "
            f"megatron.core.models"
        )
    distributed = _package("megatron.core.distributed", "MegatronLMPlugin")
    settings = distributed.DistributedDataParallelConfig(
        use_distributed_optimizer=plugin.use_distributed_optimizer
    )
    return distributed.DistributedDataParallel(model.config, settings, model)


def _package(name: str, plugin: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        top = next(known for known in _INSTALL if name.startswith(known))
        raise ImportError(f"{plugin} needs {top}: {_INSTALL[top]}") from error
