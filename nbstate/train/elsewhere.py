"""What Accelerate's Accelerator has and nbstate's has not: each name tells what to use."""

from __future__ import annotations

_INSTEAD = {
    "context_parallel_rank": "prepare() does not cut sequences",
    "data_parallel_rank": "use accelerator.torch_device_mesh['dp_replicate'].get_local_rank()",
    "data_parallel_shard_rank": "use accelerator.torch_device_mesh['dp_shard'].get_local_rank()",
    "deepspeed_ulysses_dl_adapter": "prepare() does not cut sequences",
    "fp8_backend": "use mixed_precision='fp8', which is torchao's",
    "is_composable_parallelism_enabled": "use accelerator.parallelism_config is not None",
    "lomo_backward": "use the optimizer's own fused_backward(loss, learning_rate)",
    "maybe_context_parallel": "use torch.distributed.tensor.experimental.context_parallel",
    "pipeline_parallel_rank": "prepare() does not cut models into stages",
    "profile": "use torch.profiler.profile(), and notebook_launcher(trace=True) for collectives",
    "tensor_parallel_rank": "use accelerator.torch_device_mesh['tp'].get_local_rank()",
    "verify_device_map": "use model.hf_device_map, of a model that transformers has spread out",
}


class _Absent:
    """A name that is not there: `hasattr` says so, and the error says what is.

    A ``__getattr__`` would hide the errors of properties.
    """

    def __init__(self, name: str, instead: str) -> None:
        self._message = f"Accelerate's Accelerator has {name!r} and nbstate's has not: {instead}"

    def __get__(self, instance: object, owner: type) -> None:
        raise AttributeError(self._message)

    def __set__(self, instance: object, value: object) -> None:
        # Without it `inspect` would take this for a method.
        raise AttributeError(self._message)


class Elsewhere:
    """The part of an Accelerator that is not there."""


for _name, _way in _INSTEAD.items():
    setattr(Elsewhere, _name, _Absent(_name, _way))
