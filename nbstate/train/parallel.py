"""How a model is laid out over the ranks, on torch's own DDP, FSDP2 and tensor parallelism."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

# DDP, FSDP and optimizers import this at their first use, which takes a second. Imported here the
# kernel has it, and no rank forked from it takes that second again.
import torch._dynamo
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from nbstate.operations.nested import map_tensors
from nbstate.state import DistributedType
from nbstate.train.data import DataPlace
from nbstate.train.precision import TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping, Sequence
    from contextlib import AbstractContextManager

    from torch.distributed.device_mesh import DeviceMesh

    from nbstate.plugins import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
    from nbstate.state import AcceleratorState

_COPIES = "dp_replicate"
_SHARDS = "dp_shard"
_LAYERS = "tp"


class Layout:
    """Which rank holds what of a model, and which rank sees which data.

    Attributes
    ----------
    mesh : DeviceMesh or None
        The ranks, with dimensions named as those of `ParallelismConfig`; None for plain copies of
        the model on all ranks.
    data : DataPlace
        Who gets which data.
    """

    def __init__(
        self, state: AcceleratorState, ddp: DistributedDataParallelKwargs | None = None
    ) -> None:
        self.state = state
        self._ddp = ddp
        self.mesh = _mesh(state)
        self.data = _data_place(state, self.mesh)
        # Sharding replaces parameters; whoever held an old one finds the new one here.
        self._replaced: MutableMapping[Any, Any] = WeakIdKeyDictionary()

    def place(self, model: nn.Module) -> nn.Module:
        """The model on this rank: cut, sharded or copied as the state says, whole for one alone."""
        before = _parameters(model)
        if _LAYERS in self._dimensions:
            self._cut_layers(model)
        if self._needs_shards:
            self._shard(model)
        elif self.data.count > 1 and self.state.distributed_type is not DistributedType.XLA:
            # Under XLA there is no process group: the optimizer exchanges the gradients.
            model = self._copy(model)
        # Names may change on the way, the order does not.
        for old, new in zip(before, _parameters(model), strict=True):
            if new is not old:
                self._replaced[old] = new
        return model

    def renew(self, optimizer: torch.optim.Optimizer) -> None:
        """Have an optimizer made before the model was laid out train the parameters it has now."""
        if self.state.distributed_type is DistributedType.MEGATRON_LM:
            raise NotImplementedError(
                f"{type(optimizer).__name__} would train nothing: Megatron-LM takes gradients out "
                f"of torch's optimizers' sight. Prepare the model without it; then use "
                f"megatron.core.optimizer.get_megatron_optimizer(config, [model]), and call "
                f"model.finish_grad_sync() before its step"
            )
        for group in optimizer.param_groups:
            held = group["params"]
            group["params"] = [self._replaced.get(param, param) for param in held]
            if any(new is not old and old in optimizer.state for new, old in
                   zip(group["params"], held, strict=True)):  # fmt: skip
                raise ValueError(
                    "this optimizer has taken steps before its model was sharded, so its state "
                    "does not fit any more; prepare model and optimizer before the first step"
                )

    @property
    def _dimensions(self) -> Sequence[str]:
        return () if self.mesh is None else self.mesh.mesh_dim_names or ()

    @property
    def _needs_shards(self) -> bool:
        """Whether `fully_shard` lays the model out; one process without a group has no need to."""
        if self.state.distributed_type is DistributedType.FSDP:
            return self.state.backend is not None
        # Layers that are cut are copied as if they were sharded over one rank: DDP knows none.
        return _LAYERS in self._dimensions and self.data.count > 1

    def _cut_layers(self, model: nn.Module) -> None:
        from torch.distributed.tensor.parallel import parallelize_module

        plugin = self.state.torch_tp_plugin
        plan = plugin.plan if plugin is not None else None
        plan = plan or getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
        if not plan:
            raise ValueError(
                f"tensor parallelism needs a plan for {type(model).__name__}: give "
                f"TorchTensorParallelPlugin(plan={{'layer name': ColwiseParallel(), ...}}), or the "
                f"model an attribute `tp_plan`"
            )
        assert self.mesh is not None
        parallelize_module(model, self.mesh[_LAYERS], dict(plan))

    def _shard(self, model: nn.Module) -> None:
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            raise RuntimeError(
                f"torch {torch.__version__} cannot shard: FullyShardedDataParallelPlugin needs "
                "fully_shard, which torch 2.6 and newer have"
            ) from None

        plugin = self.state.fsdp_plugin
        settings = _fsdp_settings(plugin, self.state.mixed_precision)
        if self.mesh is not None:
            dimensions = tuple(name for name in self._dimensions if name != _LAYERS)
            settings["mesh"] = self.mesh[dimensions]
        if _LAYERS in self._dimensions:
            # Cut layers give views, and FSDP hangs its work for the backward pass on the output: an
            # in-place operation on a view would lose it.
            model.register_forward_hook(_without_views)
        blocks = _blocks(plugin, model)
        if plugin is not None and plugin.activation_checkpointing:
            _forget_activations(model, blocks)
        loads_for_all = plugin is not None and plugin.cpu_ram_efficient_loading
        weights = model.state_dict() if loads_for_all and self.state.is_main_process else {}
        for block in blocks:
            fully_shard(block, **settings)
        fully_shard(model, **settings)
        if loads_for_all:
            _load_from_rank_0(model, weights)

    def _copy(self, model: nn.Module) -> nn.Module:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model  # nothing to train, nothing to exchange
        options = {} if self._ddp is None else self._ddp.to_kwargs()
        if self.state.device.type != "cpu":
            options["device_ids"] = [self.state.device.index]
        copied: DistributedDataParallel = DistributedDataParallel(model, **options)
        if self._ddp is not None:
            self._ddp.register_comm_hook(copied)
        return copied


def no_sync(model: nn.Module) -> AbstractContextManager[Any]:
    """A block in which backward passes of the model exchange no gradients."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    if hasattr(model, "set_requires_gradient_sync"):
        return _no_sharded_sync(model)
    return nullcontext()


@contextmanager
def _no_sharded_sync(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@contextmanager
def sync_in_backward(model: Any) -> Iterator[None]:
    """A block in which the backward pass of forward passes without sync does exchange gradients."""
    if isinstance(model, DistributedDataParallel):
        before = model.require_backward_grad_sync, model.require_forward_param_sync
        model.require_backward_grad_sync = model.require_forward_param_sync = True
        # What the forward pass would have done.
        model.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            model.require_backward_grad_sync, model.require_forward_param_sync = before
    else:
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(True)  # looked at in the backward pass
        yield


def unwrap(model: nn.Module, *, keep_compiled: bool = False) -> nn.Module:
    """The model inside of DDP and of `torch.compile`, or still compiled if nothing is within."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, DistributedDataParallel):
            inner = model.module
        elif keep_compiled and inner is not None and unwrap(inner) is inner:
            return model
        if inner is None:
            return model
        model = inner


def is_sharded(model: nn.Module) -> bool:
    """Whether this rank holds only parts of the model's parameters."""
    # What a DTensor has; torch has moved the class itself about.
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def _mesh(state: AcceleratorState) -> DeviceMesh | None:
    """The mesh to lay models out on, None where every rank holds a copy."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes, plugin = state.parallelism_config, state.torch_tp_plugin
    if sizes is not None and sizes.cp_size > 1:
        raise NotImplementedError(
            f"cp_size={sizes.cp_size}: prepare() does not cut sequences; on GPUs use torch's "
            f"context_parallel (torch.distributed.tensor.experimental) with the mesh of "
            f"AcceleratorState().device_mesh['cp']; on CPUs torch has no attention for it"
        )
    if not state.use_distributed:
        return None
    if sizes is not None and sizes.tp_size > 1 and sizes.dp_replicate_size > 1:
        # FSDP2 copies layers that are cut, but asks for a shard dimension to do so.
        return init_device_mesh(
            state.device.type,
            (sizes.dp_replicate_size, sizes.dp_shard_size, sizes.tp_size),
            mesh_dim_names=(_COPIES, _SHARDS, _LAYERS),
        )
    if state.device_mesh is not None and sizes is not None:
        return state.device_mesh if sizes.tp_enabled or sizes.fsdp_enabled else None
    if plugin is None or plugin.tp_size == 1:
        return None
    if plugin.torch_device_mesh is not None:
        return plugin.torch_device_mesh
    if state.num_processes % plugin.tp_size:
        raise ValueError(
            f"tp_size={plugin.tp_size} does not divide the {state.num_processes} processes"
        )
    shape = (state.num_processes // plugin.tp_size, plugin.tp_size)
    return init_device_mesh(state.device.type, shape, mesh_dim_names=(_SHARDS, _LAYERS))


def _data_place(state: AcceleratorState, mesh: DeviceMesh | None) -> DataPlace:
    """Who gets which data: ranks that hold parts of one copy of the model share theirs."""
    world, megatron = state.num_processes, state.megatron_lm_plugin
    neighbours, count = 1, world
    if megatron is not None and state.use_distributed:
        # Megatron's order, innermost first: layers, sequences, data, and stages of the pipeline.
        neighbours = megatron.tp_degree * megatron.context_parallel_size
        count = world // (neighbours * megatron.pp_degree)
    elif mesh is not None and _LAYERS in (mesh.mesh_dim_names or ()):
        # The layers' dimension is the innermost.
        neighbours = mesh[_LAYERS].size()
        count = world // neighbours
    parts = tuple(rank // neighbours % count for rank in range(world))
    return DataPlace(parts[state.process_index], count, parts)


def _fsdp_settings(plugin: FullyShardedDataParallelPlugin | None, precision: str) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    settings: dict[str, Any] = {}
    if precision in TYPES:
        # Gathered in 16 bits, summed in 32.
        policy = MixedPrecisionPolicy(param_dtype=TYPES[precision], reduce_dtype=torch.float32)
        settings["mp_policy"] = policy
    if plugin is None:
        return settings
    settings["reshard_after_forward"] = plugin.reshard_after_forward
    if plugin.mixed_precision_policy is not None:
        settings["mp_policy"] = plugin.mixed_precision_policy
    if plugin.cpu_offload:
        settings["offload_policy"] = CPUOffloadPolicy()
    if plugin.ignored_modules is not None:
        settings["ignored_params"] = {
            parameter for module in plugin.ignored_modules for parameter in module.parameters()
        }
    return settings


def _blocks(plugin: FullyShardedDataParallelPlugin | None, model: nn.Module) -> list[nn.Module]:
    """The parts that are sharded one by one, inner ones first; the whole model comes after."""
    policy = None if plugin is None else plugin.auto_wrap_policy
    modules = [module for module in reversed(list(model.modules())) if module is not model]
    if plugin is None or policy is None or policy == "no_wrap":
        return []
    if callable(policy):
        return [module for module in modules if policy(module)]
    if policy == "transformer_based_wrap":
        names = plugin.transformer_cls_names_to_wrap or []
        return [module for module in modules if type(module).__name__ in names]
    least = plugin.min_num_params or 0
    return [module for module in modules if _size(module) >= least]


def _load_from_rank_0(model: nn.Module, weights: dict[str, Any]) -> None:
    # Imported here: it takes longer than all the rest of this package.
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)


def _forget_activations(model: nn.Module, blocks: list[nn.Module]) -> None:
    if not blocks:
        raise ValueError(
            f"activation_checkpointing=True, and the plugin's auto_wrap_policy names no submodule "
            f"of {type(model).__name__} whose activations are to be computed again: give it one, "
            f"such as auto_wrap_policy='transformer_based_wrap' with transformer_cls_names_to_wrap"
        )
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    apply_activation_checkpointing(model, check_fn=lambda module: module in blocks)


def _without_views(_module: nn.Module, _inputs: Any, outputs: Any) -> Any:
    return map_tensors(lambda each: each.clone() if each._is_view() else each, outputs)


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return [each for _, each in model.named_parameters(remove_duplicate=False)]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
