"""Softmax cross-entropy of a chunk of logits on a CPU, which overwrites the logits by their gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.kernels import SUFFIXES, Form
from hornbook.ops.native.trials import Kernel
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
    cap: float | None = None,
    z_weight: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the losses of ``softmax(logits + bias)``, and overwrite the logits by the gradients of their sum.

    Args:
        logits_CV: fp32 or bf16, with contiguous rows.
        targets_C: int64; targets outside of the real columns are not scored: their losses and gradients are zero.
        bias_V: fp32 ``[num_real]``, or None.
        num_real: number of columns without padding; the gradients of padding are zero.
        with_gradient: whether to write gradients; otherwise, the logits are unchanged.
        with_predictions: whether to return predictions.
        isa: instruction set of the form.
        cap: logits become ``cap tanh(logit / cap)``, after the bias; None: no limit.
        z_weight: gradients are those of the losses plus this many times the squared logarithms of the softmax's sums
            (z-loss, Chowdhery et al. 2022, section 5).

    Returns:
        Losses in nats, ``[C]`` fp32; the first largest column of each scored row, int64, -1 elsewhere, ``[C]`` or
        empty; the gradient of the bias, fp32 ``[num_real]``, or empty; the logarithms of the softmax's sums, fp32
        ``[C]``, 0 where nothing is scored.
    """
    assert logits_CV.stride(1) == 1 or logits_CV.shape[1] == 1, "rows must be contiguous"
    size, with_bias = len(logits_CV), with_gradient and bias_V is not None
    losses_C, log_sums_C = (logits_CV.new_empty(size, dtype=torch.float32) for _ in range(2))
    predictions_C = logits_CV.new_empty(size if with_predictions else 0, dtype=torch.int64)
    of_bias_V = logits_CV.new_zeros(num_real if with_bias else 0, dtype=torch.float32)
    Form(isa)(
        f"cross_entropy_{SUFFIXES[logits_CV.dtype]}", logits_CV, *logits_CV.shape, logits_CV.stride(0), num_real,
        targets_C.contiguous(), None if bias_V is None else bias_V.detach().contiguous(),
        torch.tensor([cap or 0.0, z_weight], dtype=torch.float32), losses_C,
        predictions_C if with_predictions else None, log_sums_C, of_bias_V if with_bias else None, int(with_gradient),
        torch.get_num_threads(),
    )  # fmt: skip
    return losses_C, predictions_C, of_bias_V, log_sums_C


@shapes_of("cross_entropy_")
def _(
    logits_CV: Tensor, targets_C: Tensor, bias_V: Tensor | None, num_real: int, with_gradient: bool,
    with_predictions: bool, *others: Any, **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    size, length = len(logits_CV), num_real if with_gradient and bias_V is not None else 0
    losses_C, of_bias_V, log_sums_C = (logits_CV.new_empty(n, dtype=torch.float32) for n in (size, length, size))
    return losses_C, logits_CV.new_empty(size if with_predictions else 0, dtype=torch.int64), of_bias_V, log_sums_C


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with float64, on sizes that no block divides, with padding and a row unscored."""
    generator = torch.Generator().manual_seed(0)
    logits, bias = (3 * torch.randn(21, 75, generator=generator)).to(dtype), torch.randn(71, generator=generator)
    targets = torch.randint(71, (21,), generator=generator)
    targets[4] = -100
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    for cap, z_weight in ((None, 0.0), (4.0, 0.1)):
        gradient = logits.clone()
        given = (gradient, targets, bias, 71, True, True, form.isa, cap, z_weight)
        losses, predictions, of_bias, log_sums = cross_entropy_(*given)
        exact = exact_cross_entropy(logits[:, :71], targets, bias, cap, z_weight)
        pairs = zip((losses, gradient[:, :71], of_bias, log_sums), exact[:4], strict=True)
        if not all(torch.allclose(ours.double(), other, rtol=tolerance, atol=1e-5) for ours, other in pairs):
            return False
        if not torch.equal(predictions, exact[4]) or gradient[:, 71:].any():
            return False
    return True


def exact_cross_entropy(
    logits_CV: Tensor, targets_C: Tensor, bias_V: Tensor | None, cap: float | None = None, z_weight: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return losses, gradients of logits and of the bias, logarithms of sums and predictions, by PyTorch in float64."""
    bias_V = logits_CV.new_zeros(logits_CV.shape[1]) if bias_V is None else bias_V
    is_scored_C = targets_C >= 0
    with torch.enable_grad():
        leaf_CV, leaf_V = (tensor.detach().double().requires_grad_() for tensor in (logits_CV, bias_V))
        scores_CV = leaf_CV + leaf_V
        if cap is not None:
            scores_CV = cap * torch.tanh(scores_CV / cap)
        losses_C = functional.cross_entropy(scores_CV, targets_C, reduction="none", ignore_index=-100)
        log_sums_C = scores_CV.logsumexp(1) * is_scored_C
        total = (losses_C + z_weight * log_sums_C.square()).sum()
        of_logits_CV, of_bias_V = torch.autograd.grad(total, (leaf_CV, leaf_V))
    predictions_C = scores_CV.argmax(1).masked_fill(~is_scored_C, -1)
    return losses_C.detach(), of_logits_CV, of_bias_V, log_sums_C.detach(), predictions_C


def _trial(form: Form | None, dtype: torch.dtype, vocab_size: int) -> None:
    logits, targets = torch.ones(64, vocab_size, dtype=dtype), torch.arange(64) % vocab_size
    if form is None:
        logarithms = torch.log_softmax(logits, -1, dtype=torch.float32)
        logarithms.gather(1, targets.unsqueeze(1)).sum()
        logarithms.exp_().to(dtype)
    else:
        cross_entropy_(logits, targets, None, vocab_size, True, False, form.isa)


KERNELS = (
    Kernel("cross_entropy_f32", torch.float32, _agrees, _trial, sizes=("vocab_size",)),
    Kernel("cross_entropy_bf16", torch.bfloat16, _agrees, _trial, sizes=("vocab_size",)),
)
