"""Gradients that are too long are cut to length, all together or each tensor by itself."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hornbook.config.optimizers import ClipScope
from hornbook.optim.norms import norms_of


def clip(gradients: Sequence[Tensor], norm: float, limit: float | None, scope: ClipScope) -> None:
    """Cut gradients of the global ``norm`` in place, as a recipe's ``clip_norm`` (None: not at all) and scope say."""
    if limit is not None and scope == "global":
        clip_by_global_norm(gradients, norm, limit)
    elif limit is not None:
        clip_per_tensor(gradients, limit)


def clip_by_global_norm(gradients: Sequence[Tensor], norm: float, limit: float) -> None:
    """Scale ``gradients`` by ``limit / norm`` if their ``norm`` is above ``limit`` (Pascanu et al. 2013)."""
    if norm > limit:
        torch._foreach_mul_(list(gradients), limit / norm)


def clip_per_tensor(gradients: Sequence[Tensor], limit: float) -> None:
    """Scale each of ``gradients`` to the norm ``limit`` if its own is above it; their common direction changes."""
    scales = (limit / norms_of(gradients)).clamp(max=1.0)  # a norm of 0 makes an infinite quotient, so the scale is 1
    torch._foreach_mul_(list(gradients), list(scales.unbind()))
