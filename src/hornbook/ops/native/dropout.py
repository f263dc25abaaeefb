"""Dropout and residual addition on a CPU in one pass, by the hash of `hornbook.ops.dropout.keep_mask`."""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.dropout import dropout as pytorch_dropout
from hornbook.ops.dropout import keep_mask
from hornbook.ops.native.kernels import SUFFIXES, Form
from hornbook.ops.native.trials import Kernel
from hornbook.ops.operators import operator, shapes_of


@operator(has_gradient=True)
def dropout(x: Tensor, residual: Tensor | None, keys: Tensor, site: int, probability: float, isa: str) -> Tensor:
    """Return ``residual + drop(x)``, or ``drop(x)``, in the dtype of ``x`` ``[..., C]``.

    Args:
        x: fp32 or bf16.
        residual: of the same shape and dtype, or None.
        keys: ``[...]`` int64 in [0, 2³²), one per token.
        site: number of the dropout layer in the model.
        probability: share of elements to drop, in [0, 1).
        isa: instruction set of the form for this operator and its gradient.
    """
    x, keys = x.contiguous(), keys.contiguous()
    result, factor = torch.empty_like(x), torch.tensor(1.0 / (1.0 - probability), dtype=torch.float32)
    Form(isa)(
        f"dropout_{SUFFIXES[x.dtype]}", x, None if residual is None else residual.contiguous(), keys, keys.numel(),
        x.shape[-1], site, int(probability * (1 << 31)), factor, result, torch.get_num_threads(),
    )  # fmt: skip
    return result


@shapes_of("dropout")
def _(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    _, residual, keys, *ctx.settings = inputs
    ctx.save_for_backward(keys)
    ctx.adds = residual is not None


def _of_inputs(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_x = dropout(gradient, None, *ctx.saved_tensors, *ctx.settings) if ctx.needs_input_grad[0] else None
    return of_x, gradient if ctx.adds else None, None, None, None, None


torch.library.register_autograd("hornbook::dropout", _of_inputs, setup_context=_setup_context)


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with float64 and with the mask of PyTorch's operators."""
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(7, 37, generator=generator).to(dtype) for _ in range(2))
    keys = torch.randint(1 << 32, (7,), generator=generator)
    right = residual.double() + x.double() * keep_mask(keys, 5, 37, 0.3) / 0.7
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    ours = dropout(x, residual, keys, 5, 0.3, form.isa)
    return torch.allclose(ours.double(), right, rtol=tolerance, atol=tolerance)


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    x, residual = torch.ones(2, 512, 384, dtype=dtype)
    keys = torch.arange(512)
    if form is None:
        _ = residual + pytorch_dropout(x, keys, 0, 0.1)
    else:
        dropout(x, residual, keys, 0, 0.1, form.isa)


KERNELS = (
    Kernel("dropout_f32", torch.float32, _agrees, _trial),
    Kernel("dropout_bf16", torch.bfloat16, _agrees, _trial),
)
