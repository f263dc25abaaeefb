"""Softmax cross-entropy of a chunk of logits on a CPU, which overwrites the logits by their gradient."""

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.library import SUFFIXES, Form, Kernel
from hornbook.ops.operators import operator, shapes_of


@operator(changes=(0,))
def cross_entropy_(
    logits_CV: Tensor,
    targets_C: Tensor,
    bias_V: Tensor | None,
    num_real: int,
    with_gradient: bool,
    with_predictions: bool,
    isa: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of ``softmax(logits + bias)``, and overwrite the logits by the gradients of their sum.

    Args:
        logits_CV: fp32 or bf16, with contiguous rows.
        targets_C: int64; targets outside of the real columns are not scored: their losses and gradients are zero.
        bias_V: fp32 ``[num_real]``, or None.
        num_real: number of columns without padding; the gradients of padding are zero.
        with_gradient: whether to write gradients; otherwise, the logits are unchanged.
        with_predictions: whether to return predictions.
        isa: instruction set of the form.

    Returns:
        Losses in nats, ``[C]`` fp32; the first largest column of each scored row, int64, -1 elsewhere, ``[C]`` or
        empty; the gradient of the bias, fp32 ``[num_real]``, or empty.
    """
    return _compute(Form(isa), logits_CV, targets_C, bias_V, num_real, with_gradient, with_predictions)


@shapes_of("cross_entropy_")
def _(
    logits_CV: Tensor,
    targets_C: Tensor,
    bias_V: Tensor | None,
    num_real: int,
    with_gradient: bool,
    with_predictions: bool,
    isa: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(logits_CV, num_real, with_gradient and bias_V is not None, with_predictions)


def _results(
    logits_CV: Tensor, num_real: int, with_bias: bool, with_predictions: bool
) -> tuple[Tensor, Tensor, Tensor]:
    losses_C = logits_CV.new_empty(len(logits_CV), dtype=torch.float32)
    predictions_C = logits_CV.new_empty(len(logits_CV) if with_predictions else 0, dtype=torch.int64)
    return losses_C, predictions_C, logits_CV.new_zeros(num_real if with_bias else 0, dtype=torch.float32)


def _compute(
    form: Form,
    logits_CV: Tensor,
    targets_C: Tensor,
    bias_V: Tensor | None,
    num_real: int,
    with_gradient: bool,
    with_predictions: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    assert logits_CV.stride(1) == 1 or logits_CV.shape[1] == 1, "rows must be contiguous"
    with_bias = with_gradient and bias_V is not None
    losses_C, predictions_C, of_bias_V = _results(logits_CV, num_real, with_bias, with_predictions)
    form(
        f"cross_entropy_{SUFFIXES[logits_CV.dtype]}", logits_CV, *logits_CV.shape, logits_CV.stride(0), num_real,
        targets_C.contiguous(), None if bias_V is None else bias_V.detach().contiguous(), losses_C,
        predictions_C if with_predictions else None, of_bias_V if with_bias else None, int(with_gradient),
        torch.get_num_threads(),
    )  # fmt: skip
    return losses_C, predictions_C, of_bias_V


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with PyTorch's in float64, on sizes that no block divides, with padding and a row unscored."""
    generator = torch.Generator().manual_seed(0)
    logits, bias = (3 * torch.randn(21, 75, generator=generator)).to(dtype), torch.randn(71, generator=generator)
    targets = torch.randint(71, (21,), generator=generator)
    targets[4] = -100
    gradient = logits.clone()
    losses, predictions, of_bias = _compute(form, gradient, targets, bias, 71, True, True)
    logarithms = torch.log_softmax(logits[:, :71].double() + bias, -1)
    is_scored = targets >= 0
    right = -logarithms.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1) * is_scored
    of_exact = (logarithms.exp() - functional.one_hot(targets.clamp(min=0), 71)) * is_scored.unsqueeze(1)
    pairs = ((losses, right), (gradient[:, :71], of_exact), (of_bias, of_exact.sum(0)))
    is_same = torch.equal(predictions, logarithms.argmax(1).masked_fill_(~is_scored, -1))
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    is_close = all(torch.allclose(ours.double(), other, rtol=tolerance, atol=1e-5) for ours, other in pairs)
    return is_same and is_close and not gradient[:, 71:].any()


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    logits, targets = torch.ones(64, 8192, dtype=dtype), torch.arange(64)
    if form is None:
        logarithms = torch.log_softmax(logits, -1, dtype=torch.float32)
        logarithms.gather(1, targets.unsqueeze(1)).sum()
        logarithms.exp_().to(dtype)
    else:
        _compute(form, logits, targets, None, 8192, True, False)


KERNELS = (
    Kernel("cross_entropy_f32", torch.float32, _agrees, _trial),
    Kernel("cross_entropy_bf16", torch.bfloat16, _agrees, _trial),
)
