"""Clipping gradients that may be spread over ranks in more than one way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


def clip_norm(
    parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scale gradients down to a total norm, and return the norm that they had.

    torch's own function refuses a model that tensor parallelism has cut in parts only: some of its
    gradients are ordinary tensors, others lie on a mesh.
    """
    grads = [each.grad for each in parameters if each.grad is not None]
    groups: dict[Any, list[torch.Tensor]] = {}
    for grad in grads:
        groups.setdefault(getattr(grad, "device_mesh", None), []).append(grad)
    norms = [_whole(_norm(group, norm_type)) for group in groups.values()]
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    with torch.no_grad():
        for grad in grads:
            grad.mul_(factor.to(grad.device))
    return total


def _norm(grads: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    each = torch._foreach_norm(grads, norm_type)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(list(each)), norm_type)
    return total


def _whole(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full
