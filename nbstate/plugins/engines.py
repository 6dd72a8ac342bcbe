"""Settings for what other engines do: torch.compile, DeepSpeed and Megatron-LM."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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


@dataclass
class DeepSpeedPlugin(Plugin):
    """Settings of DeepSpeed, given here or as a whole configuration.

    Its engine takes the steps, so an incomplete last window is not rescaled.

    Parameters
    ----------
    hf_ds_config : dict, str or Path, optional
        A configuration, or the path of a JSON file with one; the other fields fill in what it does
        not say.
    gradient_accumulation_steps : int
        Batches before a step.
    gradient_clipping : float, optional
        The norm that gradients are clipped to; None clips nothing.
    zero_stage : int
        0 to 3: what is sharded (nothing, optimizer state, gradients, parameters).
    offload_optimizer_device, offload_param_device : {'none', 'cpu', 'nvme'}, optional
        Where optimizer state and, in stage 3, parameters are kept.
    offload_optimizer_nvme_path, offload_param_nvme_path : str, optional
        The directory for 'nvme'.
    zero3_init_flag : bool
        Shard while the model is built.
    zero3_save_16bit_model : bool
        Gather 16 bit weights when saving.

    Raises
    ------
    ValueError
        A value is not one of its choices, or 'nvme' has no path.

    Examples
    --------
    >>> plugin = DeepSpeedPlugin(zero_stage=3, offload_optimizer_device="cpu")
    >>> plugin.deepspeed_config["zero_optimization"]["stage"]
    3
    """

    hf_ds_config: dict[str, Any] | str | Path | None = None
    gradient_accumulation_steps: int = 1
    gradient_clipping: float | None = None
    zero_stage: int = 2
    offload_optimizer_device: str | None = None
    offload_param_device: str | None = None
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool = False
    zero3_save_16bit_model: bool = False

    def __post_init__(self) -> None:
        self._check_count("gradient_accumulation_steps")
        self._check_one_of("zero_stage", (0, 1, 2, 3))
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
        >>> DeepSpeedPlugin.from_elsewhere(theirs).deepspeed_config["zero_optimization"]
        {'stage': 1}
        """
        return cls(hf_ds_config=dict(given.deepspeed_config))

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
        config: dict[str, Any] = {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            # Where nothing is said DeepSpeed clips to 1, and refuses optimizers it does not know.
            "gradient_clipping": self.gradient_clipping or 0.0,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": zero,
        }
        return config | self._given_config()

    def _given_config(self) -> dict[str, Any]:
        if self.hf_ds_config is None or isinstance(self.hf_ds_config, dict):
            return self.hf_ds_config or {}
        config: dict[str, Any] = json.loads(Path(self.hf_ds_config).read_text())
        return config


@dataclass
class MegatronLMPlugin(Plugin):
    """Settings of Megatron-LM.

    Parameters
    ----------
    tp_degree, pp_degree : int
        Ranks that share a layer, and stages of the pipeline.
    num_micro_batches : int
        Pieces a batch is cut into for the pipeline.
    gradient_clipping : float, optional
        The norm that gradients are clipped to; None clips nothing.
    sequence_parallelism : bool
        Cut activations along the sequence too; needs ``tp_degree`` above 1.
    recompute_activations : bool
        Compute activations again in the backward pass.
    use_distributed_optimizer : bool
        Shard the optimizer's state.
    context_parallel_size, expert_model_parallel_size : int
        Ranks that share a sequence, and the experts of a mixture.
    seq_length : int, optional
        Tokens in a sequence.
    other_megatron_args : dict
        Further arguments, by Megatron's names.

    Examples
    --------
    >>> plugin = MegatronLMPlugin(tp_degree=2, pp_degree=2, num_micro_batches=4)
    """

    tp_degree: int = 1
    pp_degree: int = 1
    num_micro_batches: int = 1
    gradient_clipping: float | None = 1.0
    sequence_parallelism: bool = False
    recompute_activations: bool = False
    use_distributed_optimizer: bool = False
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    seq_length: int | None = None
    other_megatron_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_count(
            "tp_degree",
            "pp_degree",
            "num_micro_batches",
            "context_parallel_size",
            "expert_model_parallel_size",
        )
        if self.sequence_parallelism and self.tp_degree == 1:
            self._refuse("sequence_parallelism", "False where tp_degree is 1")

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
