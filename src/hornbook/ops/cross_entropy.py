"""Cross-entropy of a linear head without all of its logits: a chunk of tokens at a time, gradients in the forward pass.

The logits of a batch are its largest tensor (8 × 1024 tokens of GPT-2 are 1.6 GB in fp32), and the backward pass would
read them again. So each chunk makes its logits, its losses and, while they are at hand, its gradients::

    x_ND --chunk--> logits_CV -> losses -> softmax − onehot -> dX_CD, dW_VD += ...

``backward`` then only multiplies by the gradient that comes in. The price: the gradients are made even if no backward
follows, which is why evaluation calls ``token_losses``. Columns from ``vocab_size`` on are padding: they get no
probability and no gradient.

Where the rows of the table are cut over ranks, each rank has the logits of its columns alone, and the ranks exchange
three numbers a token: the largest logit, the sum of the exponentials, the logit of the target.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.kernels import FORMS, form_of
from hornbook.ops.native.linear import Products
from hornbook.ops.tensor_parallel import enter
from hornbook.parallel.cuts import Cut, cut_of, is_cut, local
from hornbook.samples.windows import NOT_SCORED

# Each chunk reads and writes the whole weight gradient, so small ones are slow: with GPT-2's vocabulary, 83 tokens a
# chunk take twice as long as 512, whose logits are 103 MB. More gain little, and lose where the logits leave the cache.
_CHUNK_TOKENS = 512
_BLOCK = 64  # divides the rows of a table, padded as it is


class _Head(NamedTuple):
    """The output projection as this rank computes it."""

    weight: Tensor
    """``[columns, D]``."""
    bias: Tensor | None
    """``[num_real]``."""
    num_real: int
    """Columns that exist; those after it are padding."""
    first: int = 0
    """The token of the first column."""
    cut: Cut | None = None

    @classmethod
    def of(cls, weight_VD: Tensor, bias_V: Tensor | None, vocab_size: int) -> "_Head":
        if not is_cut(weight_VD):
            return cls(weight_VD, bias_V, vocab_size)
        cut, weight = cut_of(weight_VD), local(weight_VD)
        first = cut.rank * len(weight)
        num_real = min(max(vocab_size - first, 0), len(weight))
        bias = None if bias_V is None else enter(bias_V, cut)[first : first + num_real]
        return cls(weight, bias, num_real, first, cut)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        head: _Head,
        with_count: bool,
    ) -> tuple[Tensor, Tensor]:
        total, num_correct = (torch.zeros((), dtype=torch.float32, device=x_ND.device) for _ in range(2))
        x_gradient = torch.empty_like(x_ND)
        weight_gradient = torch.zeros_like(weight_VD, dtype=torch.float32)
        bias_gradient = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        products = Products(form, weight_VD, x_ND.dtype) if FORMS and (form := form_of("linear", x_ND)) else None
        compute_weight = weight_VD if products else weight_VD.to(x_ND.dtype)
        for start in range(0, len(x_ND), _CHUNK_TOKENS):
            rows = slice(start, start + _CHUNK_TOKENS)
            x, targets = x_ND[rows], targets_N[rows]
            logits = x @ compute_weight.t() if products is None else products.product(x)
            log_probabilities = _log_probabilities(logits, head)
            picked, columns, is_own = _gather(log_probabilities, targets, head)
            total -= picked.sum()
            if with_count:
                num_correct += _num_correct(log_probabilities, targets, head)
            exact = log_probabilities.exp_()  # becomes softmax − onehot; rows without a target become zero
            exact.scatter_add_(1, columns.unsqueeze(1), -is_own.to(exact.dtype).unsqueeze(1))
            exact[targets == NOT_SCORED] = 0.0
            gradient = exact.to(x.dtype)
            if products is None:
                torch.mm(gradient, compute_weight, out=x_gradient[rows])
                weight_gradient += gradient.t() @ x
            else:
                products.input_gradient(gradient, x_gradient[rows])
                products.add_weight_gradient(gradient, x, weight_gradient)
            if bias_gradient is not None:
                bias_gradient += exact[:, : head.num_real].sum(0)
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
        ctx.mark_non_differentiable(num_correct)
        ctx.cut = head.cut
        return total, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, (x_gradient, weight_gradient, bias_gradient) = gradients[0], ctx.saved_tensors
        # In fp32: rounded to bf16, the scale could be 0.2 % off, for the trunk's gradients and not for the table's.
        scaled = (x_gradient.float() * scale).to(x_gradient.dtype)
        if ctx.cut is not None:
            scaled = ctx.cut.sum(scaled)  # each rank has that of its columns
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
    head = _Head.of(weight_VD, None, vocab_size)
    arguments = (x_ND, head.weight, None, targets_N, head, False)
    total: Tensor = _LinearCrossEntropy.apply(*arguments)[0]  # type: ignore[no-untyped-call]
    return total


def counted_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int, bias_V: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ + b)``, and the number of right predictions.

    Two fp32 scalars, the second without a gradient. Of equal logits, as there often are in bf16, the first is the
    prediction. Arguments as for ``linear_cross_entropy``; ``bias_V`` is ``[vocab_size]`` fp32, or None.
    """
    head = _Head.of(weight_VD, bias_V, vocab_size)
    if torch.is_grad_enabled():
        arguments = (x_ND, head.weight, head.bias, targets_N, head, True)
        total, num_correct = _LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
        return total, num_correct
    total, num_correct = (torch.zeros((), dtype=torch.float32, device=x_ND.device) for _ in range(2))
    for rows, log_probabilities in _scores(x_ND, head):
        total -= _gather(log_probabilities, targets_N[rows], head)[0].sum()
        num_correct += _num_correct(log_probabilities, targets_N[rows], head)
    return total, num_correct


@torch.no_grad()
def token_losses(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int, bias_V: Tensor | None = None
) -> Tensor:
    """Return each token's cross-entropy in nats, ``[N]`` fp32, zero where the target is ``NOT_SCORED``."""
    losses_N, head = (
        torch.empty(x_ND.shape[0], dtype=torch.float32, device=x_ND.device),
        _Head.of(weight_VD, bias_V, vocab_size),
    )
    for rows, log_probabilities in _scores(x_ND, head):
        losses_N[rows] = -_gather(log_probabilities, targets_N[rows], head)[0]
    return losses_N


def vocabulary_logits(x: Tensor, weight_VD: Tensor, vocab_size: int, bias_V: Tensor | None = None) -> Tensor:
    """Return the logits ``[..., vocab_size]`` in fp32 of hidden states ``[..., D]``; without gradients if cut."""
    if not is_cut(weight_VD):
        bias = None if bias_V is None else bias_V.to(x.dtype)
        return functional.linear(x, weight_VD[:vocab_size].to(x.dtype), bias).float()
    own = functional.linear(x, local(weight_VD).to(x.dtype))
    logits = cut_of(weight_VD).side_by_side(own)[..., :vocab_size]
    return (logits if bias_V is None else logits + bias_V.to(x.dtype)).float()


def _scores(x_ND: Tensor, head: _Head) -> Iterator[tuple[slice, Tensor]]:
    """Yield the log-probabilities, fp32, of each chunk."""
    compute_weight = head.weight.to(x_ND.dtype)
    for start in range(0, len(x_ND), _CHUNK_TOKENS):
        rows = slice(start, start + _CHUNK_TOKENS)
        yield rows, _log_probabilities(x_ND[rows] @ compute_weight.t(), head)


def _log_probabilities(logits: Tensor, head: _Head) -> Tensor:
    """Return those of this rank's columns, fp32, for logits without the bias, which change."""
    if head.bias is not None:
        logits[:, : head.num_real] += head.bias.to(logits.dtype)
    logits[:, head.num_real :] = -torch.inf
    if head.cut is None:
        return torch.log_softmax(logits, -1, dtype=torch.float32)
    logits = logits.float()
    logits -= head.cut.largest(logits.amax(1, keepdim=True))
    logits -= head.cut.sum(logits.exp().sum(1, keepdim=True)).log_()
    return logits


def _gather(log_probabilities: Tensor, targets: Tensor, head: _Head) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probability of each target, zero where there is none, and where it was found.

    That is the target's column, any one where this rank has none, and whether this rank has one.
    """
    columns = targets - head.first
    is_own = (columns >= 0) & (columns < log_probabilities.shape[1])
    columns = columns.masked_fill(~is_own, 0)
    picked = log_probabilities.gather(1, columns.unsqueeze(1)).squeeze(1).masked_fill(~is_own, 0.0)
    return picked if head.cut is None else head.cut.sum(picked), columns, is_own


def _num_correct(log_probabilities: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """Count the targets that are predicted."""
    predicted = _first_largest(log_probabilities)
    if head.cut is not None:
        own = log_probabilities.gather(1, predicted.unsqueeze(1)).squeeze(1)
        is_best = own == head.cut.largest(own.clone())
        # the first token of equals: the smallest one, as a maximum
        predicted = -head.cut.largest((-predicted - head.first).masked_fill(~is_best, -(1 << 62)))
    return (predicted == targets).sum()


def _first_largest(x_CV: Tensor) -> Tensor:
    """Return ``x.argmax(1)``, on a CPU four times as fast: first the block of columns, then the column in it.

    There ``amax`` computes many columns at once and ``argmax`` one after the other.
    """
    size = math.gcd(_BLOCK, x_CV.shape[1])
    blocks = x_CV.view(len(x_CV), -1, size)
    best = blocks.amax(2).argmax(1, keepdim=True)
    inside = blocks.take_along_dim(best.unsqueeze(2), 1).squeeze(1).argmax(1)
    return best.squeeze(1) * size + inside
