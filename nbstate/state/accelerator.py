"""AcceleratorState: PartialState, and how this run trains: precision, plugins, device mesh."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbstate import devices
from nbstate.plugins import (
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    MegatronLMPlugin,
    ParallelismConfig,
    TorchDynamoPlugin,
    TorchTensorParallelPlugin,
    adopt,
)
from nbstate.state.control import ProcessControl
from nbstate.state.kinds import DistributedType, checked_precision
from nbstate.state.life import SharedState, caller, end
from nbstate.state.partial import PartialState, conflict, here, lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from nbstate.plugins import Plugin
    from nbstate.state.facts import ProcessFacts


@dataclass
class TrainingFacts:
    """What AcceleratorState knows beyond PartialState."""

    partial: PartialState
    asked_precision: str
    mixed_precision: str
    dynamo_plugin: TorchDynamoPlugin | None = None
    fsdp_plugin: FullyShardedDataParallelPlugin | None = None
    torch_tp_plugin: TorchTensorParallelPlugin | None = None
    megatron_lm_plugin: MegatronLMPlugin | None = None
    parallelism_config: ParallelismConfig | None = None
    deepspeed_plugins: dict[str, DeepSpeedPlugin] = field(default_factory=dict)
    active_deepspeed: str | None = None
    device_mesh: DeviceMesh | None = None

    def planned_type(self) -> DistributedType | None:
        """The distributed type that the plugins ask for; None leaves the launched one."""
        sizes = self.parallelism_config
        sharded = self.fsdp_plugin or (sizes is not None and sizes.fsdp_enabled)
        if self.deepspeed_plugins:
            return DistributedType.DEEPSPEED
        if self.megatron_lm_plugin:
            return DistributedType.MEGATRON_LM
        if sharded:
            return DistributedType.FSDP
        if self.torch_tp_plugin or (sizes is not None and sizes.tp_enabled):
            return DistributedType.TP
        return None


class AcceleratorState(SharedState[TrainingFacts], ProcessControl):
    """Everything PartialState tells, and precision, plugins and device mesh of this run.

    Every object in a process shows the same; the first construction settles it.

    Parameters
    ----------
    mixed_precision : {'no', 'fp16', 'bf16', 'fp8'}, optional
        None takes what the launcher asked for, else 'no'. 'fp8' on a device that cannot becomes
        'fp16' on CUDA and 'bf16' elsewhere, with a warning.
    cpu : bool
        Stay on the CPU.
    dynamo_plugin : TorchDynamoPlugin, optional
        How models are compiled.
    deepspeed_plugin : DeepSpeedPlugin or dict of them, optional
        Of several, by name, the first is active until `select_deepspeed_plugin` chooses another.
    fsdp_plugin : FullyShardedDataParallelPlugin, optional
        How parameters are sharded.
    torch_tp_plugin : TorchTensorParallelPlugin, optional
        How layers are cut.
    megatron_lm_plugin : MegatronLMPlugin, optional
        Settings of Megatron-LM.
    parallelism_config : ParallelismConfig, optional
        How many ranks there are in each direction; builds `device_mesh`.
    **kwargs
        For `PartialState`.

    Raises
    ------
    ValueError
        An unknown precision, plugins of two engines, sizes that do not make up all ranks, or a
        state that exists with other settings.

    Examples
    --------
    >>> with AcceleratorState(mixed_precision="bf16") as state:
    ...     print(state.mixed_precision)
    bf16
    """

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugin: DeepSpeedPlugin | Mapping[str, DeepSpeedPlugin] | None = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        torch_tp_plugin: TorchTensorParallelPlugin | None = None,
        megatron_lm_plugin: MegatronLMPlugin | None = None,
        parallelism_config: ParallelismConfig | None = None,
        _from_accelerator: bool = False,
        **kwargs: Any,
    ) -> None:
        if mixed_precision is not None:
            mixed_precision = checked_precision(mixed_precision, "mixed_precision")
        asked = {
            "dynamo_plugin": adopt(TorchDynamoPlugin, dynamo_plugin, "dynamo_plugin"),
            "fsdp_plugin": adopt(FullyShardedDataParallelPlugin, fsdp_plugin, "fsdp_plugin"),
            "torch_tp_plugin": adopt(TorchTensorParallelPlugin, torch_tp_plugin, "torch_tp_plugin"),
            "megatron_lm_plugin": adopt(MegatronLMPlugin, megatron_lm_plugin, "megatron_lm_plugin"),
            "parallelism_config": adopt(
                ParallelismConfig, parallelism_config, "parallelism_config"
            ),
            "deepspeed_plugins": _named(deepspeed_plugin),
        }
        given = {name: plugin for name, plugin in asked.items() if plugin}
        _check_together(given)
        partial = PartialState(cpu, **kwargs)
        self._begin(
            lambda: _settle(partial, mixed_precision, given),
            lambda facts: _agree(facts, mixed_precision, given),
        )

    @property
    def _process(self) -> ProcessFacts:
        return self._facts.partial._facts

    @classmethod
    def _here(cls) -> ProcessFacts:
        return here()

    @classmethod
    def _joined(cls) -> ProcessFacts:
        return PartialState._joined()

    @property
    def mixed_precision(self) -> str:
        """The precision in force: 'no', 'fp16', 'bf16' or 'fp8'."""
        return self._facts.mixed_precision

    @property
    def dynamo_plugin(self) -> TorchDynamoPlugin | None:
        """How models are compiled, None for not at all."""
        return self._facts.dynamo_plugin

    @property
    def fsdp_plugin(self) -> FullyShardedDataParallelPlugin | None:
        """How parameters are sharded."""
        return self._facts.fsdp_plugin

    @property
    def torch_tp_plugin(self) -> TorchTensorParallelPlugin | None:
        """How layers are cut."""
        return self._facts.torch_tp_plugin

    @property
    def megatron_lm_plugin(self) -> MegatronLMPlugin | None:
        """Settings of Megatron-LM."""
        return self._facts.megatron_lm_plugin

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """How many ranks there are in each direction."""
        return self._facts.parallelism_config

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The ranks as a mesh, where a `parallelism_config` was given to several processes."""
        return self._facts.device_mesh

    @property
    def is_fsdp2(self) -> bool:
        """Whether parameters are sharded by FSDP2."""
        return self.distributed_type is DistributedType.FSDP

    @property
    def deepspeed_plugins(self) -> dict[str, DeepSpeedPlugin]:
        """All DeepSpeed plugins by name."""
        return dict(self._facts.deepspeed_plugins)

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        """The active DeepSpeed plugin, None without DeepSpeed."""
        active = self._facts.active_deepspeed
        return None if active is None else self._facts.deepspeed_plugins[active]

    def get_deepspeed_plugin(self, name: str) -> DeepSpeedPlugin:
        """The DeepSpeed plugin of this name.

        Raises
        ------
        ValueError
            There is none; those there are are named.

        Examples
        --------
        >>> student, teacher = DeepSpeedPlugin(zero_stage=2), DeepSpeedPlugin(zero_stage=3)
        >>> state = AcceleratorState(deepspeed_plugin={"student": student, "teacher": teacher})
        >>> state.get_deepspeed_plugin("teacher").zero_stage
        3
        """
        plugins = self._facts.deepspeed_plugins
        if name not in plugins:
            there_are = ", ".join(map(repr, plugins)) or "none at all"
            raise ValueError(f"there is no DeepSpeed plugin {name!r}; there are {there_are}")
        return plugins[name]

    def select_deepspeed_plugin(self, name: str) -> None:
        """Make the DeepSpeed plugin of this name the active one.

        Examples
        --------
        >>> student, teacher = DeepSpeedPlugin(zero_stage=2), DeepSpeedPlugin(zero_stage=3)
        >>> state = AcceleratorState(deepspeed_plugin={"student": student, "teacher": teacher})
        >>> state.select_deepspeed_plugin("teacher")
        >>> state.deepspeed_plugin.zero_stage
        3
        """
        self.get_deepspeed_plugin(name)
        self._facts.active_deepspeed = name

    @classmethod
    def _reset_state(cls, reset_partial_state: bool = False) -> None:
        """Forget this state; with True also the PartialState that it stands on."""
        partial = PartialState._current()
        if partial is not None:
            partial.facts.planned_type = None
        more = [PartialState] if reset_partial_state else []
        end(f"AcceleratorState._reset_state() {caller()}", cls, *more)

    def _lines(self) -> Iterator[tuple[str, object]]:
        facts = self._facts
        yield from lines(self._process)
        yield "Mixed precision", facts.mixed_precision
        for label, value in (
            ("DeepSpeed plugin", facts.active_deepspeed),
            ("FSDP plugin", facts.fsdp_plugin),
            ("Tensor parallel plugin", facts.torch_tp_plugin),
            ("Megatron-LM plugin", facts.megatron_lm_plugin),
            ("Dynamo plugin", facts.dynamo_plugin),
            ("Parallelism config", facts.parallelism_config),
            ("Device mesh", facts.device_mesh),
        ):
            if value is not None:
                yield label, value


def _named(
    given: DeepSpeedPlugin | Mapping[str, DeepSpeedPlugin] | None,
) -> dict[str, Plugin | None]:
    plugins = given if isinstance(given, dict) else {"default": given} if given else {}
    return {
        name: adopt(DeepSpeedPlugin, plugin, f"deepspeed_plugin[{name!r}]")
        for name, plugin in plugins.items()
    }


def _check_together(given: Mapping[str, Any]) -> None:
    engines = [
        name for name in ("deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin") if name in given
    ]
    if len(engines) > 1:
        raise ValueError(f"{' and '.join(engines)} are two ways to lay out one model; give one")


def _settle(
    partial: PartialState, precision: str | None, given: Mapping[str, Any]
) -> TrainingFacts:
    asked = precision or partial.mixed_precision
    facts = TrainingFacts(partial, asked, _possible(asked, partial._facts), **given)
    facts.active_deepspeed = next(iter(facts.deepspeed_plugins), None)
    if facts.parallelism_config is not None:
        facts.parallelism_config.check_world_size(partial.num_processes)
    if facts.megatron_lm_plugin is not None and partial.use_distributed:
        facts.megatron_lm_plugin.check_world_size(partial.num_processes)
    if facts.parallelism_config is not None and partial.use_distributed:
        facts.device_mesh = facts.parallelism_config.build_device_mesh(partial._facts.kind)
    partial._facts.planned_type = facts.planned_type()
    return facts


def _possible(precision: str, process: ProcessFacts) -> str:
    if precision != "fp8" or devices.supports_fp8(process.kind, process.index or 0):
        return precision
    instead = "fp16" if process.kind == "cuda" else "bf16"
    warnings.warn(
        f"mixed_precision='fp8' needs a device that computes in 8 bits, and {process.kind} does "
        f"not; using {instead!r}",
        stacklevel=2,
    )
    return instead


def _agree(facts: TrainingFacts, precision: str | None, given: Mapping[str, Any]) -> None:
    if precision not in (None, facts.asked_precision, facts.mixed_precision):
        raise conflict(
            "AcceleratorState", "mixed_precision", repr(facts.mixed_precision), repr(precision)
        )
    for name, asked in given.items():
        there_is = getattr(facts, name)
        if there_is != asked:
            raise conflict("AcceleratorState", name, there_is or None, asked)
