"""Cross-entropy of a linear head without all of its logits: a chunk of tokens at a time, gradients in the forward pass.

The logits of a batch are its largest tensor (8 × 1024 tokens of GPT-2 are 1.6 GB in fp32), and the backward pass would
read them again. So each chunk makes its logits, its losses and, while they are at hand, its gradients::

    x_ND --chunk--> logits_CV -> losses -> softmax − onehot -> dX_CD, dW_VD += ...

``backward`` then only multiplies by the gradient that comes in. The price: the gradients are made even if no backward
follows, which is why evaluation calls ``token_losses``. Columns from ``vocab_size`` on are padding: they get no
probability and no gradient.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hornbook.samples.windows import NOT_SCORED

# Each chunk reads and writes the whole weight gradient, so small ones are slow: with GPT-2's vocabulary, 83 tokens a
# chunk take twice as long as 512, whose logits are 103 MB. More gain little, and lose where the logits leave the cache.
_CHUNK_TOKENS = 512
_BLOCK = 64  # divides the rows of a table, padded as it is


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        vocab_size: int,
        with_count: bool,
    ) -> tuple[Tensor, Tensor]:
        total, num_correct = torch.zeros(2, dtype=torch.float32, device=x_ND.device).unbind()
        x_gradient = torch.empty_like(x_ND)
        weight_gradient = torch.zeros_like(weight_VD, dtype=torch.float32)
        bias_gradient = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        compute_weight = weight_VD.to(x_ND.dtype)
        for start in range(0, len(x_ND), _CHUNK_TOKENS):
            rows = slice(start, start + _CHUNK_TOKENS)
            x, targets = x_ND[rows], targets_N[rows]
            log_probabilities = _log_probabilities(x, compute_weight, bias_V, vocab_size)
            total -= _gather(log_probabilities, targets).sum()
            if with_count:
                num_correct += _num_correct(log_probabilities, targets)
            exact = log_probabilities.exp_()  # becomes softmax − onehot; rows without a target become zero
            exact.scatter_add_(1, targets.clamp(min=0).unsqueeze(1), exact.new_full((len(targets), 1), -1.0))
            exact[targets == NOT_SCORED] = 0.0
            gradient = exact.to(x.dtype)
            torch.mm(gradient, compute_weight, out=x_gradient[rows])
            weight_gradient += gradient.t() @ x
            if bias_gradient is not None:
                bias_gradient += exact[:, :vocab_size].sum(0)
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
        ctx.mark_non_differentiable(num_correct)
        return total, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, (x_gradient, weight_gradient, bias_gradient) = gradients[0], ctx.saved_tensors
        # In fp32: rounded to bf16, the scale could be 0.2 % off, for the trunk's gradients and not for the table's.
        scaled = (x_gradient.float() * scale).to(x_gradient.dtype)
        return scaled, weight_gradient * scale, None if bias_gradient is None else bias_gradient * scale, *[None] * 3


def linear_cross_entropy(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ)``.

    Args:
        x_ND: hidden states ``[N, D]``, fp32 or bf16.
        weight_VD: output table ``[V, D]``, fp32. Its gradient is a sum in fp32 of one product a chunk, each rounded to
            the dtype of ``x``.
        targets_N: ``[N]`` int64; ``NOT_SCORED`` (-100) is not scored.
        vocab_size: columns that exist; those after it are padding.

    Returns:
        fp32 scalar, in nats.
    """
    if not torch.is_grad_enabled():
        return token_losses(x_ND, weight_VD, targets_N, vocab_size).sum()
    total: Tensor = _LinearCrossEntropy.apply(x_ND, weight_VD, None, targets_N, vocab_size, False)[0]  # type: ignore[no-untyped-call]
    return total


def counted_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int, bias_V: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ + b)``, and the number of right predictions.

    Two fp32 scalars, the second without a gradient. Of equal logits, as there often are in bf16, the first is the
    prediction. Arguments as for ``linear_cross_entropy``; ``bias_V`` is ``[vocab_size]`` fp32, or None.
    """
    if torch.is_grad_enabled():
        arguments = (x_ND, weight_VD, bias_V, targets_N, vocab_size, True)
        total, num_correct = _LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
        return total, num_correct
    total, num_correct = torch.zeros(2, dtype=torch.float32, device=x_ND.device).unbind()
    for rows, log_probabilities in _scores(x_ND, weight_VD, bias_V, vocab_size):
        total -= _gather(log_probabilities, targets_N[rows]).sum()
        num_correct += _num_correct(log_probabilities, targets_N[rows])
    return total, num_correct


@torch.no_grad()
def token_losses(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int, bias_V: Tensor | None = None
) -> Tensor:
    """Return each token's cross-entropy in nats, ``[N]`` fp32, zero where the target is ``NOT_SCORED``."""
    losses_N = torch.empty(x_ND.shape[0], dtype=torch.float32, device=x_ND.device)
    for rows, log_probabilities in _scores(x_ND, weight_VD, bias_V, vocab_size):
        losses_N[rows] = -_gather(log_probabilities, targets_N[rows])
    return losses_N


def _scores(x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, vocab_size: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield the log-probabilities, fp32, of each chunk."""
    compute_weight = weight_VD.to(x_ND.dtype)
    for start in range(0, len(x_ND), _CHUNK_TOKENS):
        rows = slice(start, start + _CHUNK_TOKENS)
        yield rows, _log_probabilities(x_ND[rows], compute_weight, bias_V, vocab_size)


def _log_probabilities(x: Tensor, weight: Tensor, bias: Tensor | None, vocab_size: int) -> Tensor:
    logits = x @ weight.t()
    if bias is not None:
        logits[:, :vocab_size] += bias.to(logits.dtype)
    logits[:, vocab_size:] = -torch.inf
    return torch.log_softmax(logits, -1, dtype=torch.float32)


def _gather(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    picked = log_probabilities.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)
    return picked.masked_fill(targets == NOT_SCORED, 0.0)


def _num_correct(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Count the targets that are predicted."""
    return (_first_largest(log_probabilities) == targets).sum()


def _first_largest(x_CV: Tensor) -> Tensor:
    """Return ``x.argmax(1)``, on a CPU four times as fast: first the block of columns, then the column in it.

    There ``amax`` computes many columns at once and ``argmax`` one after the other.
    """
    size = math.gcd(_BLOCK, x_CV.shape[1])
    blocks = x_CV.view(len(x_CV), -1, size)
    best = blocks.amax(2).argmax(1, keepdim=True)
    inside = blocks.take_along_dim(best.unsqueeze(2), 1).squeeze(1).argmax(1)
    return best.squeeze(1) * size + inside
