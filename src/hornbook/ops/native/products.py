"""The products of a linear layer, without autograd, with weights packed once for all products.

::

    weight fp32 --pack--> panels in the dtype of x, kept for all micro-batches of a step
    x, panels  ---------> y, or f(y) and y                    product
    g, panels of Wᵀ ----> gradient of x, or that times f'(x)  product
    g, x  --------------> dW, db in fp32, stored or added     add_weight_gradient
"""

from collections.abc import MutableMapping
from typing import Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hornbook.ops.native import kernels
from hornbook.ops.native.library import SUFFIXES, Form, rows

ACTIVATIONS: Final = ("none", "gelu", "gelu_tanh", "relu", "relu_squared", "silu")
"""In the order of ``Activation`` in csrc/activations.h."""
_Key = tuple[torch.dtype, bool, str, bool]
"""Dtype of the activations, whether panels are for the gradient, instruction set, whether they are of gates."""
_State = tuple[int, int]
"""The number of the block in which a weight does not change, and its address."""
_packed: MutableMapping[Tensor, dict[_Key, tuple[_State, Tensor]]] = WeakTensorKeyDictionary()


def panels_of(form: Form, weight: Tensor, dtype: torch.dtype, *, for_gradient: bool, is_gated: bool = False) -> Tensor:
    """Return the weight packed for activations of ``dtype``, cached as long as the weight does not change.

    ``is_gated`` is for the product with a stack of gates and of what they multiply, see ``product``.
    """
    block = kernels.unchanged.block
    if block is None or not isinstance(weight, torch.nn.Parameter):
        return pack(form, weight, dtype, for_gradient, None, is_gated=is_gated)
    kept, state = _packed.setdefault(weight, {}), (block, weight.data_ptr())
    key = (dtype, for_gradient, form.isa, is_gated)
    known_state, panels = kept.get(key, (None, None))
    if panels is None or known_state != state:
        panels = pack(form, weight, dtype, for_gradient, panels, is_gated=is_gated)
        kept[key] = (state, panels)
    return panels


def pack(
    form: Form,
    weight: Tensor,
    dtype: torch.dtype,
    for_gradient: bool,
    panels: Tensor | None,
    *,
    is_gated: bool = False,
) -> Tensor:
    """Pack a weight into ``panels``, or into new memory if that is None."""
    name, matrix = SUFFIXES[dtype], rows(weight.detach())
    num_out, num_in = matrix.shape
    columns, depth = (num_in, num_out) if for_gradient else (num_out, num_in)
    size = form(f"linear_packed_bytes_{name}", columns, depth)
    if panels is None or panels.numel() != size:
        panels = torch.empty(size, dtype=torch.uint8)
    kind = (int(for_gradient), int(is_gated))
    form(f"linear_pack_{name}", matrix, matrix.stride(0), num_out, num_in, *kind, panels, torch.get_num_threads())
    return panels


def product(
    form: Form,
    x: Tensor,
    panels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    for_gradient: bool = False,
    activation: str = "none",
    before: Tensor | None = None,
    derivative_at: Tensor | None = None,
    is_gated: bool = False,
) -> Tensor:
    """Return ``f(x Wᵀ + b)``, or ``x W`` for a gradient, ``[M, columns]``.

    With ``is_gated``, half of the columns of ``x Wᵀ + b`` are gates, and the result is ``f(gate) · up``
    ``[M, columns / 2]`` (Shazeer 2020). With ``derivative_at``, too, ``x W`` is the gradient of that, and the result
    those of gate and up, ``[M, 2 columns]``.

    Args:
        form: of the product.
        x: fp32 or bf16, ``[..., depth]``, M rows.
        panels: of the weight, packed for this product.
        weight: determines the number of columns.
        bias: fp32.
        out: contiguous; the result is written to it if it is given.
        for_gradient: whether the product is with ``W`` rather than ``Wᵀ``.
        activation: f, of ``ACTIVATIONS``.
        before: ``[M, columns]``, contiguous; ``x Wᵀ + b`` is written to it.
        derivative_at: ``before``; multiply the product by f' of these instead of applying f.
        is_gated: see above; panels are of gates, too, unless there is ``derivative_at``.
    """
    x_MK = rows(x)
    num_rows, depth = x_MK.shape
    columns = weight.shape[-1] if for_gradient else weight.shape[:-1].numel()
    gated = 0 if not is_gated else columns if derivative_at is not None else columns // 2
    width = columns if not is_gated else 2 * gated if derivative_at is not None else gated
    y_MN = x_MK.new_empty(num_rows, width) if out is None else out
    bias = None if bias is None else bias.detach().contiguous()
    at_stride = 0 if derivative_at is None else derivative_at.stride(0)
    form(
        f"linear_product_{SUFFIXES[x_MK.dtype]}", x_MK, x_MK.stride(0), panels, num_rows, columns, depth,
        ACTIVATIONS.index(activation), bias, before, derivative_at, at_stride, y_MN, width, gated,
        torch.get_num_threads(),
    )  # fmt: skip
    return y_MN


def activation_gradient(form: Form, gradient: Tensor, u: Tensor, activation: str) -> Tensor:
    """Return ``gradient · f'(u)``, or the gradients of gate and up if ``u`` has both, ``[..., 2 F]``."""
    gradient, u, size = gradient.contiguous(), u.contiguous(), gradient.shape[-1]
    result = torch.empty_like(u)
    form(
        f"activation_gradient_{SUFFIXES[u.dtype]}", gradient, u, gradient.shape[:-1].numel(), size,
        int(u.shape[-1] != size), ACTIVATIONS.index(activation), result, torch.get_num_threads(),
    )  # fmt: skip
    return result


def add_weight_gradient(
    form: Form, gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, *, accumulate: bool
) -> None:
    """Write, or with ``accumulate`` add, the gradients of weight and bias to contiguous fp32 tensors."""
    g_MN, x_MK = rows(gradient), rows(x)
    form(
        f"linear_weight_gradient_{SUFFIXES[x.dtype]}", g_MN, g_MN.stride(0), x_MK, x_MK.stride(0), len(x_MK),
        g_MN.shape[1], x_MK.shape[1], of_weight, of_bias, int(accumulate), torch.get_num_threads(),
    )  # fmt: skip
