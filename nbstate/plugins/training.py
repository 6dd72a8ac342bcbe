"""Settings of the training loop: accumulation, data, precision, process group and DDP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nbstate.plugins.base import Plugin

if TYPE_CHECKING:
    from datetime import timedelta

    import torch


@dataclass
class GradientAccumulationPlugin(Plugin):
    """How gradients are accumulated over several batches before a step.

    Parameters
    ----------
    num_steps : int
        Batches in a window.
    adjust_scheduler : bool
        Count scheduler steps also where the optimizer did not step.
    sync_with_dataloader : bool
        End the window with the last batch of the dataloader, however full it is.
    sync_each_batch : bool
        Let ranks exchange gradients at every batch: slower, but less memory with FSDP.
    last_window : {'rescale', 'carry', 'drop'}
        What becomes of an incomplete last window: its gradients weigh as much as a full window's,
        are carried into the next epoch, or are dropped.

    Examples
    --------
    >>> GradientAccumulationPlugin(num_steps=4).to_kwargs()
    {'num_steps': 4}
    """

    num_steps: int = 1
    adjust_scheduler: bool = False
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False
    last_window: Literal["rescale", "carry", "drop"] = "rescale"

    def __post_init__(self) -> None:
        self._check_count("num_steps")
        self._check_one_of("last_window", ("rescale", "carry", "drop"))


@dataclass
class DataLoaderConfiguration(Plugin):
    """How dataloaders are dealt out to the ranks.

    Parameters
    ----------
    split_batches : bool
        The dataloader's batch size is that of all ranks together, not of each.
    dispatch_batches : bool, optional
        Rank 0 reads the data and sends each rank its part. None: for iterable datasets only.
    even_batches : bool
        Repeat samples at the end until all ranks have as many. Before it, batches of a sampler that
        makes them of varying sizes stay as they are: for those `gather` needs ``as_list=True``.
    use_seedable_sampler : bool
        Shuffle by a seed and the epoch, equal in every run.
    data_seed : int, optional
        The seed of that sampler; None takes torch's.
    non_blocking : bool
        Move batches to the device without waiting; needs pinned memory.
    use_stateful_dataloader : bool
        Use torchdata's StatefulDataLoader, whose position can be saved.

    Examples
    --------
    >>> accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False


@dataclass
class AutocastKwargs(Plugin):
    """Keyword arguments of `torch.autocast`: ``enabled`` and ``cache_enabled``.

    Examples
    --------
    >>> handler = AutocastKwargs(cache_enabled=False)
    >>> accelerator = Accelerator(mixed_precision="bf16", kwargs_handlers=[handler])
    """

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class GradScalerKwargs(Plugin):
    """Keyword arguments of `torch.amp.GradScaler`, which keeps fp16 gradients from vanishing.

    Parameters
    ----------
    init_scale : float
        The factor to begin with.
    growth_factor, backoff_factor : float
        The factor grows by the one after `growth_interval` good steps, and shrinks by the other
        after a step with infinite or undefined gradients.
    growth_interval : int
        Good steps between two growths.
    enabled : bool
        False leaves gradients as they are.

    Examples
    --------
    >>> handler = GradScalerKwargs(init_scale=1024.0)
    >>> Accelerator(mixed_precision="fp16", kwargs_handlers=[handler]).scaler.get_scale()
    1024.0
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True

    def __post_init__(self) -> None:
        self._check_count("growth_interval")
        if self.init_scale <= 0:
            self._refuse("init_scale", "above 0")
        if self.growth_factor <= 1:
            self._refuse("growth_factor", "above 1")
        if not 0 < self.backoff_factor < 1:
            self._refuse("backoff_factor", "between 0 and 1")


@dataclass
class InitProcessGroupKwargs(Plugin):
    """Keyword arguments of `torch.distributed.init_process_group`.

    Parameters
    ----------
    backend : str, optional
        'nccl', 'gloo', ...; None takes the one that belongs to the device.
    init_method : str, optional
        A URL that tells where ranks meet; None takes the launcher's.
    timeout : timedelta, optional
        How long a collective may take; None takes torch's default for the backend.

    Examples
    --------
    >>> from datetime import timedelta
    >>> state = PartialState(**InitProcessGroupKwargs(timeout=timedelta(hours=1)).to_kwargs())
    """

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = None


_HOOKS = ("no", "fp16", "bf16", "power_sgd", "batched_power_sgd")
_WRAPPERS = ("no", "fp16", "bf16")


@dataclass
class DistributedDataParallelKwargs(Plugin):
    """Keyword arguments of `torch.nn.parallel.DistributedDataParallel`, and its communication hook.

    Parameters
    ----------
    dim, broadcast_buffers, bucket_cap_mb, find_unused_parameters, check_reduction, \
gradient_as_bucket_view, static_graph
        As torch documents them; ``bucket_cap_mb`` in MiB.
    comm_hook : {'no', 'fp16', 'bf16', 'power_sgd', 'batched_power_sgd'}
        How gradients are compressed on their way.
    comm_wrapper : {'no', 'fp16', 'bf16'}
        A cast around that hook.
    comm_state_option : dict
        Keyword arguments of PowerSGD's state.

    Examples
    --------
    >>> handler = DistributedDataParallelKwargs(find_unused_parameters=True, comm_hook="fp16")
    >>> accelerator = Accelerator(kwargs_handlers=[handler])
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: str = "no"
    comm_wrapper: str = "no"
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_one_of("comm_hook", _HOOKS)
        self._check_one_of("comm_wrapper", _WRAPPERS)

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from their defaults, without those of the hook.

        Examples
        --------
        >>> handler.to_kwargs()
        {'find_unused_parameters': True}
        """
        said = super().to_kwargs()
        return {name: value for name, value in said.items() if not name.startswith("comm_")}

    def register_comm_hook(self, model: torch.nn.parallel.DistributedDataParallel) -> None:
        """Give the model the communication hook chosen here, if any.

        Examples
        --------
        >>> def train():
        ...     PartialState()
        ...     model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        ...     handler.register_comm_hook(model)
        ...     (model(torch.ones(1, 1)) + model(torch.ones(1, 1))).sum().backward()
        ...     return model.module.bias.grad.item()
        >>> debug_launcher(train)
        RankResults([2.0, 2.0])
        """
        if self.comm_hook == "no":
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        hooks: dict[str, Any] = {
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": default_hooks.bf16_compress_hook,
            "power_sgd": powerSGD_hook.powerSGD_hook,
            "batched_power_sgd": powerSGD_hook.batched_powerSGD_hook,
        }
        wrappers: dict[str, Any] = {
            "no": lambda hook: hook,
            "fp16": default_hooks.fp16_compress_wrapper,
            "bf16": default_hooks.bf16_compress_wrapper,
        }
        powers = self.comm_hook.endswith("power_sgd")
        state = powerSGD_hook.PowerSGDState(None, **self.comm_state_option) if powers else None
        model.register_comm_hook(state, wrappers[self.comm_wrapper](hooks[self.comm_hook]))
