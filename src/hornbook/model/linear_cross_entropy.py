"""Cross-entropy of a linear head without all of its logits: a chunk of tokens at a time, gradients in the forward pass.

The logits of a batch are its largest tensor (8 × 1024 tokens of GPT-2 are 1.6 GB in fp32), and the backward pass would
read them again. So each chunk makes its logits, its losses and, while they are at hand, its gradients::

    x_ND --chunk--> logits_CV -> losses -> softmax − onehot -> dX_CD, dW_VD += ...

``backward`` then only multiplies by the gradient that comes in. The price: the gradients are made even if no backward
follows, which is why evaluation calls ``token_losses``. Columns from ``vocab_size`` on are padding: they get no
probability and no gradient.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hornbook.data.examples import NOT_SCORED

# Each chunk reads and writes the whole weight gradient, so small ones are slow: with GPT-2's vocabulary, 83 tokens a
# chunk take twice as long as 512, whose logits are 103 MB. More gain little, and lose where the logits leave the cache.
_CHUNK_TOKENS = 512


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=x_ND.device)
        x_gradient = torch.empty_like(x_ND)
        weight_gradient = torch.zeros_like(weight_VD, dtype=torch.float32)
        compute_weight = weight_VD.to(x_ND.dtype)
        for rows in _chunks(x_ND.shape[0]):
            x, targets = x_ND[rows], targets_N[rows]
            log_probabilities = _log_probabilities(x, compute_weight, vocab_size)
            total -= _gather(log_probabilities, targets).sum()
            gradient = _logit_gradient(log_probabilities, targets).to(x.dtype)
            torch.mm(gradient, compute_weight, out=x_gradient[rows])
            weight_gradient += gradient.t() @ x
        ctx.save_for_backward(x_gradient, weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x_gradient, weight_gradient = ctx.saved_tensors
        # In fp32: rounded to bf16, the scale could be 0.2 % off, for the trunk's gradients and not for the table's.
        return (x_gradient.float() * scale).to(x_gradient.dtype), weight_gradient * scale, None, None


def linear_cross_entropy(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ)``.

    Args:
        x_ND: hidden states ``[N, D]``, fp32 or bf16.
        weight_VD: output table ``[V, D]``, fp32; its gradient adds up in fp32.
        targets_N: ``[N]`` int64; ``NOT_SCORED`` (-100) is not scored.
        vocab_size: columns that exist; those after it are padding.

    Returns:
        fp32 scalar, in nats.
    """
    if not torch.is_grad_enabled():
        return token_losses(x_ND, weight_VD, targets_N, vocab_size).sum()
    total: Tensor = _LinearCrossEntropy.apply(x_ND, weight_VD, targets_N, vocab_size)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
    """Return each token's cross-entropy in nats, ``[N]`` fp32, zero where the target is ``NOT_SCORED``."""
    losses_N = torch.empty(x_ND.shape[0], dtype=torch.float32, device=x_ND.device)
    compute_weight = weight_VD.to(x_ND.dtype)
    for rows in _chunks(x_ND.shape[0]):
        losses_N[rows] = -_gather(_log_probabilities(x_ND[rows], compute_weight, vocab_size), targets_N[rows])
    return losses_N


def _chunks(num_tokens: int) -> Iterator[slice]:
    for start in range(0, num_tokens, _CHUNK_TOKENS):
        yield slice(start, start + _CHUNK_TOKENS)


def _log_probabilities(x: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
    logits = x @ weight.t()
    logits[:, vocab_size:] = -torch.inf
    return torch.log_softmax(logits, -1, dtype=torch.float32)


def _gather(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    picked = log_probabilities.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)
    return picked.masked_fill(targets == NOT_SCORED, 0.0)


def _logit_gradient(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Turn log-probabilities into ``softmax − onehot`` in place; rows without a target become zero."""
    gradient = log_probabilities.exp_()
    gradient.scatter_add_(1, targets.clamp(min=0).unsqueeze(1), gradient.new_full((len(targets), 1), -1.0))
    gradient[targets == NOT_SCORED] = 0.0
    return gradient
