"""Helpers for the operands of native operators: suffixes of dtypes, and tensors with contiguous rows."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

SUFFIXES: Final[Mapping[torch.dtype, str]] = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""Suffixes of C functions by the dtype of the activations."""


def rows(x: Tensor) -> Tensor:
    """Return ``x`` ``[..., columns]`` as ``[rows, columns]`` with contiguous rows, a view if possible."""
    x = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
