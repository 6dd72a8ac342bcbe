"""torch.compile, as `TorchDynamoPlugin` asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from nbstate.plugins import TorchDynamoPlugin


def compile_model(model: nn.Module, plugin: TorchDynamoPlugin | None) -> nn.Module:
    """Compile the model, or each of its repeated blocks; in place.

    In place the model keeps its class and the names in its state dict, which a wrapper would not.
    """
    if plugin is None or plugin.backend == "no" or plugin.disable:
        return model
    for part in _repeated(model) if plugin.use_regional_compilation else [model]:
        part.compile(**plugin.to_kwargs())
    return model


def forget_compiled(model: nn.Module) -> None:
    """Have a model, and its parts, run as before `compile_model`; in place."""
    for part in model.modules():
        if part._compiled_call_impl is not None:
            part._compiled_call_impl = None


def _repeated(model: nn.Module) -> list[nn.Module]:
    """The blocks of the model's module lists; the model itself where it has none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return [block for blocks in lists for block in blocks] or [model]
