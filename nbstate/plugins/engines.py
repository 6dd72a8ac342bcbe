"""Settings for what other engines do: torch.compile, DeepSpeed and Megatron-LM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbstate.plugins.base import Plugin

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class TorchDynamoPlugin(Plugin):
    """Keyword arguments of `torch.compile`.

    Parameters
    ----------
    backend : str
        'inductor', 'aot_eager', ...; 'no' leaves the model as it is.
    mode : {'default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-cudagraphs'}, optional
        What to optimise for.
    fullgraph : bool
        Fail where the model cannot be compiled in one piece.
    dynamic : bool, optional
        Compile for changing shapes; None finds out.
    options : dict, optional
        Options of the backend.
    disable : bool
        Compile nothing, for testing.
    use_regional_compilation : bool
        Compile repeated blocks once each instead of the whole model.

    Examples
    --------
    >>> plugin = TorchDynamoPlugin(backend="aot_eager", dynamic=True)
    >>> accelerator = Accelerator(dynamo_plugin=plugin)
    """

    backend: str = "inductor"
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict[str, Any] | None = None
    disable: bool = False
    use_regional_compilation: bool = False

    def __post_init__(self) -> None:
        self.backend = self.backend.lower()
        modes = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        self._check_one_of("mode", (None, *modes))
        if self.mode is not None and self.options:
            self._refuse("mode", "None where options are given: torch.compile takes one of them")

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from `torch.compile`'s defaults.

        Examples
        --------
        >>> TorchDynamoPlugin(mode="max-autotune", fullgraph=True).to_kwargs()
        {'mode': 'max-autotune', 'fullgraph': True}
        """
        said = super().to_kwargs()
        said.pop("use_regional_compilation", None)
        return said


_OFFLOAD = (None, "none", "cpu", "nvme")
# Where a configuration says what a field says.
_IN_CONFIGURATION = {
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("gradient_clipping",),
    "zero_stage": ("zero_optimization", "stage"),
    "zero3_save_16bit_model": ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
    "offload_optimizer_device": ("zero_optimization", "offload_optimizer", "device"),
    "offload_optimizer_nvme_path": ("zero_optimization", "offload_optimizer", "nvme_path"),
    "offload_param_device": ("zero_optimization", "offload_param", "device"),
    "offload_param_nvme_path": ("zero_optimization", "offload_param", "nvme_path"),
}


@dataclass
class DeepSpeedPlugin(Plugin):
    """Settings of DeepSpeed, given here or as a whole configuration.

    Its engine takes the steps, so an incomplete last window is not rescaled.

    Parameters
    ----------
    hf_ds_config : dict, str or Path, optional
        A configuration, or the path of a JSON file with one. The other fields fill in what it does
        not say or calls "auto", and tell what it says.
    gradient_accumulation_steps : int, optional
        Batches before a step; None takes the Accelerator's.
    gradient_clipping : float, optional
        The norm that gradients are clipped to; None clips nothing, or to 1 where the configuration
        says "auto".
    zero_stage : int
        0 to 3: what is sharded (nothing, optimizer state, gradients, parameters).
    offload_optimizer_device, offload_param_device : {'none', 'cpu', 'nvme'}, optional
        Where optimizer state and, in stage 3, parameters are kept.
    offload_optimizer_nvme_path, offload_param_nvme_path : str, optional
        The directory for 'nvme'.
    zero3_init_flag : bool
        False; to shard a model while it is built, do so inside ``deepspeed.zero.Init``.
    zero3_save_16bit_model : bool
        Gather 16 bit weights when saving.

    Raises
    ------
    ValueError
        A value is not one of its choices, or 'nvme' has no path.
    FileNotFoundError
        There is no such file.

    Examples
    --------
    >>> plugin = DeepSpeedPlugin(zero_stage=3, offload_optimizer_device="cpu")
    >>> plugin.deepspeed_config["zero_optimization"]["stage"]
    3
    """

    hf_ds_config: dict[str, Any] | str | Path | None = None
    gradient_accumulation_steps: int | None = None
    gradient_clipping: float | None = None
    zero_stage: int = 2
    offload_optimizer_device: str | None = None
    offload_param_device: str | None = None
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool = False
    zero3_save_16bit_model: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.hf_ds_config, (str, Path)):
            self.hf_ds_config = json.loads(Path(self.hf_ds_config).read_text())
        self._take_over_configuration()
        if self.gradient_accumulation_steps is not None:
            self._check_count("gradient_accumulation_steps")
        self._check_one_of("zero_stage", (0, 1, 2, 3))
        if self.zero3_init_flag:
            self._refuse(
                "zero3_init_flag",
                "False: build the model inside deepspeed.zero.Init(config_dict_or_path=...)",
            )
        for part in ("optimizer", "param"):
            self._check_one_of(f"offload_{part}_device", _OFFLOAD)
            path = f"offload_{part}_nvme_path"
            if getattr(self, f"offload_{part}_device") == "nvme" and not getattr(self, path):
                self._refuse(path, "a directory where parts are offloaded to 'nvme'")

    @classmethod
    def from_elsewhere(cls, given: Any) -> Self:
        """The same settings from Accelerate's plugin, which has them as one configuration.

        Examples
        --------
        >>> from types import SimpleNamespace
        >>> theirs = SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": 1}})
        >>> DeepSpeedPlugin.from_elsewhere(theirs).zero_stage
        1
        """
        return cls(hf_ds_config=dict(given.deepspeed_config))

    def _take_over_configuration(self) -> None:
        """Have the fields tell what the configuration says."""
        config: Any = self.hf_ds_config or {}
        if config.get("gradient_clipping") == "auto" and self.gradient_clipping is None:
            self.gradient_clipping = 1.0  # what Accelerate puts there
        for name, path in _IN_CONFIGURATION.items():
            said: Any = config
            for key in path:
                said = said.get(key) if isinstance(said, dict) else None
            if said not in (None, "auto"):
                setattr(self, name, said)

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        """The configuration for `deepspeed.initialize`."""
        zero: dict[str, Any] = {
            "stage": self.zero_stage,
            "stage3_gather_16bit_weights_on_model_save": self.zero3_save_16bit_model,
        }
        for part in ("optimizer", "param"):
            device = getattr(self, f"offload_{part}_device")
            if device in {"cpu", "nvme"}:
                path = getattr(self, f"offload_{part}_nvme_path")
                zero[f"offload_{part}"] = {"device": device} | ({"nvme_path": path} if path else {})
        given: dict[str, Any] = _without_auto(self.hf_ds_config)
        return {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": self.gradient_accumulation_steps or "auto",
            # Where nothing is said DeepSpeed clips to 1, and refuses optimizers it does not know.
            "gradient_clipping": self.gradient_clipping or 0.0,
            "zero_allow_untested_optimizer": True,
            **given,
            "zero_optimization": zero | _without_auto(given.get("zero_optimization")),
        }


def _without_auto(section: Any) -> dict[str, Any]:
    return {name: value for name, value in (section or {}).items() if value != "auto"}


@dataclass
class MegatronLMPlugin(Plugin):
    """How Megatron-LM lays a model out over the ranks.

    What else Megatron can do is said in its own ``config`` of the model and of its optimizer, which
    has to be Megatron's too: `prepare` refuses others.

    Parameters
    ----------
    tp_degree, pp_degree : int
        Ranks that share a layer, and stages of the pipeline.
    use_distributed_optimizer : bool
        Shard the optimizer's state.
    context_parallel_size, expert_model_parallel_size : int
        Ranks that share a sequence, and the experts of a mixture.

    Examples
    --------
    >>> plugin = MegatronLMPlugin(tp_degree=2, pp_degree=2)
    """

    tp_degree: int = 1
    pp_degree: int = 1
    use_distributed_optimizer: bool = False
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1

    def __post_init__(self) -> None:
        self._check_count(
            "tp_degree", "pp_degree", "context_parallel_size", "expert_model_parallel_size"
        )

    def check_world_size(self, world_size: int) -> None:
        """Raise a ValueError where the ranks do not divide into whole models.

        Examples
        --------
        >>> plugin.check_world_size(8)
        >>> plugin.check_world_size(6)
        Traceback (most recent call last):
        ValueError: MegatronLMPlugin: one model takes tp_degree=2 x pp_degree=2 x ...
        """
        model = self.tp_degree * self.pp_degree * self.context_parallel_size
        if world_size % model:
            raise ValueError(
                f"MegatronLMPlugin: one model takes tp_degree={self.tp_degree} x "
                f"pp_degree={self.pp_degree} x context_parallel_size={self.context_parallel_size} "
                f"= {model} ranks, and {world_size} ranks are no multiple of that"
            )
