"""How a model is laid out over the ranks: FSDP, tensor parallelism, and both together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nbstate.plugins.base import Plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Self


_ONLY_2 = "2: nbstate shards with fully_shard, not with FSDP 1"
_POLICIES_ELSEWHERE = {
    "transformer_auto_wrap_policy": "transformer_based_wrap",
    "size_based_auto_wrap_policy": "size_based_wrap",
}


@dataclass
class FullyShardedDataParallelPlugin(Plugin):
    """How parameters are sharded over the ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`).

    A process that is alone, without a process group, keeps the whole model.

    Parameters
    ----------
    fsdp_version : int
        2; version 1 is not offered.
    reshard_after_forward : bool or int
        Free gathered parameters after the forward pass and gather them again for the backward
        pass. An int reshards to groups of that many ranks instead.
    mixed_precision_policy : MixedPrecisionPolicy, optional
        FSDP's own; None derives it from the state's ``mixed_precision``.
    auto_wrap_policy : str or callable, optional
        'transformer_based_wrap', 'size_based_wrap', 'no_wrap' or a function of a module: which
        submodules are sharded on their own: those of the named classes, those with at least
        `min_num_params` parameters, none, or those for which ``policy(module)`` is true.
    transformer_cls_names_to_wrap : list of str, optional
        The class names for 'transformer_based_wrap'.
    min_num_params : int, optional
        The number of parameters for 'size_based_wrap'.
    cpu_offload : bool
        Keep parameters, gradients and optimizer state in the host's memory.
    ignored_modules : iterable of Module, optional
        Submodules that are not sharded.
    state_dict_type : {'sharded_state_dict', 'full_state_dict'}
        Whether a checkpoint holds every rank's shard or whole weights.
    activation_checkpointing : bool
        Compute activations again in the backward pass instead of keeping them, for each of the
        submodules that `auto_wrap_policy` finds; where it finds none, `prepare` says so.
    cpu_ram_efficient_loading : bool
        Only rank 0 loads the weights; the others get their shards from it.

    Raises
    ------
    ValueError
        A value is not one of its choices, or a policy lacks what it goes by.

    Examples
    --------
    >>> def train():
    ...     plugin = FullyShardedDataParallelPlugin(reshard_after_forward=False)
    ...     model = Accelerator(fsdp_plugin=plugin).prepare(torch.nn.Linear(3, 4))
    ...     return tuple(model.weight.to_local().shape)
    >>> debug_launcher(train)
    RankResults([(2, 3), (2, 3)])
    """

    fsdp_version: int = 2
    reshard_after_forward: bool | int = True
    mixed_precision_policy: Any = None
    auto_wrap_policy: str | Callable[[torch.nn.Module], bool] | None = None
    transformer_cls_names_to_wrap: list[str] | None = None
    min_num_params: int | None = None
    cpu_offload: bool = False
    ignored_modules: Iterable[torch.nn.Module] | None = None
    state_dict_type: str = "sharded_state_dict"
    activation_checkpointing: bool = False
    cpu_ram_efficient_loading: bool = False

    def __post_init__(self) -> None:
        if self.fsdp_version != 2:
            self._refuse("fsdp_version", _ONLY_2)
        self.state_dict_type = self.state_dict_type.lower()
        self._check_one_of("state_dict_type", ("sharded_state_dict", "full_state_dict"))
        policies = ("transformer_based_wrap", "size_based_wrap", "no_wrap")
        if self.auto_wrap_policy is not None and not callable(self.auto_wrap_policy):
            self._check_one_of("auto_wrap_policy", policies)
        if self.auto_wrap_policy == "size_based_wrap":
            self._check_count("min_num_params")
        if self.auto_wrap_policy == "transformer_based_wrap" and (
            not self.transformer_cls_names_to_wrap
        ):
            self._refuse("transformer_cls_names_to_wrap", "the names of the classes to shard by")

    @classmethod
    def from_elsewhere(cls, given: Any) -> Self:
        """The same settings from Accelerate's plugin; FSDP 1 is refused.

        Examples
        --------
        >>> import accelerate
        >>> theirs = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=True)
        >>> FullyShardedDataParallelPlugin.from_elsewhere(theirs).cpu_offload
        True
        """
        if given.fsdp_version != 2:
            raise ValueError(f"{cls.__name__}: fsdp_version={given.fsdp_version} must be {_ONLY_2}")
        said: dict[str, Any] = {}
        for name in ("reshard_after_forward", "mixed_precision_policy", "auto_wrap_policy",
                     "transformer_cls_names_to_wrap", "min_num_params", "ignored_modules",
                     "activation_checkpointing", "cpu_ram_efficient_loading"):  # fmt: skip
            if getattr(given, name, None) is not None:
                said[name] = getattr(given, name)
        policy = getattr(given.auto_wrap_policy, "__name__", None)
        if policy in _POLICIES_ELSEWHERE:
            said["auto_wrap_policy"] = _POLICIES_ELSEWHERE[policy]
        kind = getattr(given.state_dict_type, "name", given.state_dict_type)
        offload = (
            type(given.cpu_offload).__name__ == "CPUOffloadPolicy" or given.cpu_offload is True
        )
        return cls(state_dict_type=str(kind), cpu_offload=offload, **said)


@dataclass
class TorchTensorParallelPlugin(Plugin):
    """How layers are cut over the ranks by torch's tensor parallelism.

    Parameters
    ----------
    tp_size : int
        How many ranks share a layer; of a mesh of one's own, as many as its dimension has.
    torch_device_mesh : DeviceMesh, optional
        A mesh of one's own whose last dimension is ``"tp"``; None makes one.
    plan : dict, optional
        For `torch.distributed.tensor.parallel.parallelize_module`: names of submodules and their
        styles. None takes the model's own plan where it has one.

    Examples
    --------
    >>> from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    >>> def train():
    ...     plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    ...     plugin = TorchTensorParallelPlugin(tp_size=2, plan=plan)
    ...     model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    ...     model = Accelerator(torch_tp_plugin=plugin).prepare(model)
    ...     return tuple(model[0].weight.to_local().shape)
    >>> debug_launcher(train)
    RankResults([(2, 3), (2, 3)])
    """

    tp_size: int = 1
    torch_device_mesh: DeviceMesh | None = None
    plan: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check_count("tp_size")
        mesh = self.torch_device_mesh
        if mesh is None:
            return
        if (mesh.mesh_dim_names or ("",))[-1] != "tp":
            self._refuse("torch_device_mesh", "a mesh whose last dimension is named 'tp'")
        size = mesh.size(mesh.ndim - 1)
        if self.tp_size not in (1, size):
            self._refuse("tp_size", f"{size}, as in torch_device_mesh, or left out")
        self.tp_size = size


Dimension = Literal["dp_replicate", "dp_shard", "cp", "tp"]
_DIMENSIONS: tuple[Dimension, ...] = ("dp_replicate", "dp_shard", "cp", "tp")


@dataclass
class ParallelismConfig(Plugin):
    """How many ranks there are in each direction; together they are all ranks.

    Parameters
    ----------
    dp_replicate_size : int
        Ranks with copies of the parameters (DDP, the outer part of HSDP).
    dp_shard_size : int
        Ranks among which parameters are sharded (FSDP).
    tp_size : int
        Ranks that share each layer (tensor parallelism).
    cp_size : int
        Ranks that share each sequence (context parallelism).

    Examples
    --------
    >>> ParallelismConfig(dp_shard_size=2, tp_size=2).total_size
    4
    """

    dp_replicate_size: int = 1
    dp_shard_size: int = 1
    tp_size: int = 1
    cp_size: int = 1

    # What Accelerate fills in by itself.
    _derived_elsewhere: ClassVar[Collection[str]] = (
        "cp_backend",
        "sp_backend",
        "tp_handler",
        "cp_handler",
        "sp_handler",
    )

    def __post_init__(self) -> None:
        self._check_count(*(f"{name}_size" for name in _DIMENSIONS))

    def size(self, dimension: Dimension) -> int:
        """The number of ranks in one direction.

        Examples
        --------
        >>> ParallelismConfig(dp_shard_size=2, tp_size=4).size("tp")
        4
        """
        size: int = getattr(self, f"{dimension}_size")
        return size

    @property
    def total_size(self) -> int:
        """The number of ranks that this takes."""
        return math.prod(map(self.size, _DIMENSIONS))

    @property
    def data_parallel_size(self) -> int:
        """The number of ranks that see different data."""
        return self.dp_replicate_size * self.dp_shard_size

    @property
    def active_dimensions(self) -> tuple[Dimension, ...]:
        """The directions with more than one rank, outermost first: the names of the mesh."""
        return tuple(name for name in _DIMENSIONS if self.size(name) > 1)

    @property
    def tp_enabled(self) -> bool:
        """Whether layers are shared."""
        return self.tp_size > 1

    @property
    def fsdp_enabled(self) -> bool:
        """Whether parameters are sharded; context parallelism shards them over its ranks too."""
        return self.dp_shard_size > 1 or self.cp_size > 1

    def check_world_size(self, world_size: int) -> None:
        """Raise a ValueError that names the numbers where they do not make up all ranks.

        Examples
        --------
        >>> ParallelismConfig(tp_size=2).check_world_size(3)
        Traceback (most recent call last):
        ValueError: ParallelismConfig: dp_replicate_size=1 x ... = 2 ranks, but there are 3
        """
        if self.total_size != world_size:
            told = " x ".join(f"{name}_size={self.size(name)}" for name in _DIMENSIONS)
            raise ValueError(
                f"ParallelismConfig: {told} = {self.total_size} ranks, but there are {world_size}"
            )

    def build_device_mesh(self, device_type: str) -> DeviceMesh:
        """The ranks as a mesh with a dimension for each active direction: a collective.

        The order is dp_replicate, dp_shard, cp, tp, so that ranks that share layers are neighbours.
        With one rank only the mesh is a single ``"dp_replicate"``.

        Examples
        --------
        >>> def directions():
        ...     PartialState()
        ...     return ParallelismConfig(tp_size=2).build_device_mesh("cpu").mesh_dim_names
        >>> debug_launcher(directions)[0]
        ('tp',)
        """
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        self.check_world_size(dist.get_world_size())
        names = self.active_dimensions or ("dp_replicate",)
        shape = tuple(map(self.size, names))
        return init_device_mesh(device_type, shape, mesh_dim_names=names)
