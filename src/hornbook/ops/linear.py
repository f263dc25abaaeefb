"""The linear map of fp32 weights in the dtype of the activations."""

import torch
from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x Wᵀ + b`` ``[..., num_out]`` in the dtype of ``x`` ``[..., num_in]``.

    Args:
        x: of any floating dtype.
        weight: ``[num_out, num_in]``, fp32; its gradient is fp32.
        bias: ``[num_out]``, fp32, or None.
    """
    return functional.linear(x, weight.to(x.dtype), cast(bias, x.dtype))


def cast(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a parameter that may be absent in ``dtype``."""
    return None if parameter is None else parameter.to(dtype)
