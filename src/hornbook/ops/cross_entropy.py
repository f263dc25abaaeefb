"""Fused linear cross-entropy: computes logits in chunks of tokens, and gradients in the forward pass.

The logits are the largest tensor of a batch (8 × 1024 tokens of GPT-2 take 1.6 GB in fp32), and the backward pass would
read them again. So each chunk computes its logits, losses and gradients at once::

    x_ND --chunk--> logits_CV -> losses -> softmax − onehot -> dX_CD, dW_VD += ...

``backward`` only scales by the incoming gradient. In return, gradients are computed even if no backward pass follows,
so evaluation calls ``token_losses``. Columns from ``vocab_size`` on are padding: they have no probability and no
gradient.

With several ``chunks`` of the vocabulary, a chunk of tokens iterates over parts of the columns twice: first for the
largest logit and the sum of exponentials, then for the gradients. It holds the logits, and the rows of the table in the
dtype of the activations, of only one part at a time, for the cost of one more product with the table.

If the rows of the table are split over ranks, each rank computes the logits of its columns, and the ranks exchange
three numbers per token: the largest logit, the sum of exponentials, and the logit of the target.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.config.shapes import HEAD_TOKENS, HEAD_TOKENS_FUSED
from hornbook.ops.chunk_losses import Chunk, Columns, add_by_parts, is_fused, losses_of, squares_of, summary_of
from hornbook.ops.mixed_linear import is_mixed, write_product
from hornbook.ops.native.kernels import copy_of, form_of
from hornbook.ops.native.linear import linear_weight_gradient, panels_of, product
from hornbook.ops.tensor_parallel import enter, gather_columns
from hornbook.parallel.ranks import cut_of, is_cut, local


class _LinearCrossEntropy(torch.autograd.Function):
    """The summed losses and the number of correct predictions.

    With weights, the weighted and the unweighted sum; with ``z_weight``, the summed losses, whose gradient is that of
    the losses and the weighted squares, and the summed squares.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        head: Columns,
        with_count: bool,
        chunks: int,
        weights_N: Tensor | None = None,
        z_weight: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        total, weighted, num_correct, squares = (x_ND.new_zeros((), dtype=torch.float32) for _ in range(4))
        copied = head.table if chunks == 1 and x_ND.is_cuda and is_mixed(x_ND, weight_VD) else None  # once a step
        empty = (
            torch.empty_like if copied is not None and len(x_ND) else torch.zeros_like
        )  # the first product writes it
        weight_gradient = empty(weight_VD, dtype=torch.float32)
        x_gradient = torch.empty_like(x_ND)
        bias_gradient = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        form = form_of("linear", x_ND) if chunks == 1 and weight_VD.dtype == torch.float32 else None
        weight, panels = weight_VD, list[Tensor]()
        if form is not None:  # packed once for all chunks of tokens
            panels = [panels_of(form, weight_VD, x_ND.dtype, for_gradient=back) for back in (False, True)]
        elif chunks == 1:
            weight = weight_VD.to(x_ND.dtype) if copied is None else copy_of(copied, x_ND.dtype)
        losses = partial(losses_of, with_count=with_count, with_gradient=True, z_weight=z_weight)
        for rows in _chunks_of(x_ND, head, chunks, z_weight):
            x, targets, weights = x_ND[rows], targets_N[rows], None if weights_N is None else weights_N[rows]
            if chunks > 1:
                given = (x_gradient[rows], weight_gradient, bias_gradient, weights, z_weight)
                picked, right, square = add_by_parts(x, targets, head.parts(chunks), *given, with_count=with_count)
                total, squares, num_correct = total - picked.sum(), squares + square, num_correct + right
                weighted -= 0.0 if weights is None else picked @ weights
                continue
            chunk = losses(  # no variable refers to the logits, so that they are freed
                x @ weight.t() if form is None else product(form, x, panels[0], weight_VD), targets, head
            )
            total += chunk.losses.sum()
            squares += chunk.squares
            num_correct += chunk.num_correct
            if weights is not None:
                weighted += chunk.losses @ weights
                chunk.gradient.mul_(weights.unsqueeze(1))
            if form is None:
                torch.mm(chunk.gradient, weight, out=x_gradient[rows])
                if copied is not None:  # in fp32
                    write_product(weight_gradient, chunk.gradient.t(), x, adds=rows.start > 0)
                else:
                    weight_gradient += chunk.gradient.t() @ x
            else:
                product(form, chunk.gradient, panels[1], weight_VD, out=x_gradient[rows], for_gradient=True)
                linear_weight_gradient(chunk.gradient, x, weight_gradient, None, form.isa, True)
            if bias_gradient is not None:
                bias_gradient += chunk.bias_gradient
            del chunk  # with the logits, before the next ones are made
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
        loss, beside = (total, squares if z_weight else num_correct) if weights_N is None else (weighted, total)
        ctx.mark_non_differentiable(beside)
        ctx.cut = head.cut
        return loss, beside

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, (x_gradient, weight_gradient, bias_gradient) = gradients[0], ctx.saved_tensors
        # in fp32, as [1]: a bf16 scale could be 0.2 % off for the trunk's gradients, but not for the table's
        scaled = torch.mul(x_gradient, scale.view(1), out=torch.empty_like(x_gradient))
        if ctx.cut is not None:
            scaled = ctx.cut.sum(scaled)  # over the ranks' columns
        # in place, since it is as large as the table, unless the pass is repeated, as in zero-bubble schedules
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        weight_gradient = weight_gradient * scale if is_kept else weight_gradient.mul_(scale)
        return scaled, weight_gradient, None if bias_gradient is None else bias_gradient * scale, *[None] * 6


def linear_cross_entropy(
    x_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    vocab_size: int,
    chunks: int = 1,
    cap: float | None = None,
) -> Tensor:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ)``.

    Args:
        x_ND: hidden states ``[N, D]``, of any floating dtype.
        weight_VD: output table ``[V, D]``, fp32. Its gradient is the fp32 sum of a product per chunk, each rounded to
            the dtype of ``x``.
        targets_N: ``[N]`` int64; ``NOT_SCORED`` (-100) is ignored.
        vocab_size: number of columns without padding.
        chunks: parts of the columns to compute one after the other; 1: all at once.
        cap: soft limit of the logits, ``cap · tanh(logit / cap)``, if any.

    Returns:
        fp32 scalar, in nats.
    """
    if not torch.is_grad_enabled():
        return token_losses(x_ND, weight_VD, targets_N, vocab_size, chunks=chunks, cap=cap).sum()
    head = _columns_of(weight_VD, None, vocab_size, cap)
    arguments = (x_ND, head.weight, None, targets_N, head, False, chunks)
    total: Tensor = _LinearCrossEntropy.apply(*arguments)[0]  # type: ignore[no-untyped-call]
    return total


def z_regularized_cross_entropy(
    z_weight: float,
    x_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    vocab_size: int,
    chunks: int = 1,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropies and that of the squared log-sums of exponentials (z-loss).

    Both are fp32 scalars. The gradient of the first is that of both, the second times ``z_weight`` (Chowdhery et al.
    2022, PaLM, section 5); the second has none. Other arguments as for ``linear_cross_entropy``.
    """
    head = _columns_of(weight_VD, None, vocab_size, cap)
    if torch.is_grad_enabled():
        arguments = (x_ND, head.weight, None, targets_N, head, False, chunks, None, z_weight)
        total, squares = _LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
        return total, squares
    total, squares = (torch.zeros((), dtype=torch.float32, device=x_ND.device) for _ in range(2))
    for _, chunk in _chunks(x_ND, targets_N, head, chunks, with_count=False, z_weight=z_weight):
        total += chunk.losses.sum()
        squares += chunk.squares
    return total, squares


def weighted_cross_entropy(
    weights_N: Tensor,
    x_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    vocab_size: int,
    chunks: int = 1,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weighted and the unweighted sum of the cross-entropies of ``softmax(x Wᵀ)``.

    Both are fp32 scalars, the second without a gradient. ``weights_N`` is fp32, without a gradient; other arguments as
    for ``linear_cross_entropy``.
    """
    if not torch.is_grad_enabled():
        losses_N = token_losses(x_ND, weight_VD, targets_N, vocab_size, chunks=chunks, cap=cap)
        return losses_N @ weights_N, losses_N.sum()
    head = _columns_of(weight_VD, None, vocab_size, cap)
    arguments = (x_ND, head.weight, None, targets_N, head, False, chunks, weights_N)
    total, unweighted = _LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return total, unweighted


def counted_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int, bias_V: Tensor | None = None, chunks: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ + b)``, and the number of correct predictions.

    Both are fp32 scalars, the second without a gradient. Of equal logits, which are frequent in bf16, the first is the
    prediction. Arguments as for ``linear_cross_entropy``; ``bias_V`` is ``[vocab_size]`` fp32, or None.
    """
    head = _columns_of(weight_VD, bias_V, vocab_size)
    if torch.is_grad_enabled():
        arguments = (x_ND, head.weight, head.bias, targets_N, head, True, chunks)
        total, num_correct = _LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
        return total, num_correct
    total, num_correct = (torch.zeros((), dtype=torch.float32, device=x_ND.device) for _ in range(2))
    for _, chunk in _chunks(x_ND, targets_N, head, chunks, with_count=True):
        total += chunk.losses.sum()
        num_correct += chunk.num_correct
    return total, num_correct


@torch.no_grad()
def token_losses(
    x_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    vocab_size: int,
    chunks: int = 1,
    cap: float | None = None,
    bias_V: Tensor | None = None,
) -> Tensor:
    """Return each token's cross-entropy in nats, ``[N]`` fp32, 0 where the target is ``NOT_SCORED``."""
    losses_N = torch.empty(x_ND.shape[0], dtype=torch.float32, device=x_ND.device)
    head = _columns_of(weight_VD, bias_V, vocab_size, cap)
    for rows, chunk in _chunks(x_ND, targets_N, head, chunks, with_count=False):
        losses_N[rows] = chunk.losses
    return losses_N


def vocabulary_logits(
    x: Tensor, weight_VD: Tensor, vocab_size: int, bias_V: Tensor | None = None, cap: float | None = None
) -> Tensor:
    """Return the logits ``[..., vocab_size]`` in fp32 of hidden states ``[..., D]``; without gradients if split."""
    if not is_cut(weight_VD):
        bias = None if bias_V is None else bias_V.to(x.dtype)
        logits = functional.linear(x, weight_VD[:vocab_size].to(x.dtype), bias).float()
    else:
        own = functional.linear(x, local(weight_VD).to(x.dtype))
        dtype = torch.float32 if bias_V is None else x.dtype  # in which the bias is added
        logits = gather_columns(own, cut_of(weight_VD), dtype)[..., :vocab_size]
        logits = (logits if bias_V is None else logits + bias_V.to(x.dtype)).float()
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _columns_of(weight_VD: Tensor, bias_V: Tensor | None, vocab_size: int, cap: float | None = None) -> Columns:
    """Return this rank's columns of a table ``[V, D]``."""
    if not is_cut(weight_VD):
        return Columns(weight_VD, bias_V, vocab_size, cap=cap, table=weight_VD)
    cut, weight = cut_of(weight_VD), local(weight_VD)
    first = cut.rank * len(weight)
    num_real = min(max(vocab_size - first, 0), len(weight))
    bias = None if bias_V is None else enter(bias_V, cut)[first : first + num_real]
    return Columns(weight, bias, num_real, first, cut, cap, weight_VD)


def _chunks(
    x_ND: Tensor, targets_N: Tensor, head: Columns, chunks: int, *, with_count: bool, z_weight: float = 0.0
) -> Iterator[tuple[slice, Chunk]]:
    """Yield the slice and the results of each chunk of tokens."""
    form = form_of("linear", x_ND) if chunks == 1 and head.weight.dtype == torch.float32 else None
    packed = head.weight if form is None else panels_of(form, head.weight, x_ND.dtype, for_gradient=False)
    weight = head.weight.to(x_ND.dtype) if form is None and chunks == 1 else head.weight
    for rows in _chunks_of(x_ND, head, chunks, z_weight):
        x, targets = x_ND[rows], targets_N[rows]
        if chunks > 1:
            normalizer, picked, num_correct = summary_of(x, targets, head.parts(chunks), with_count=with_count)
            yield rows, Chunk(-picked, num_correct, picked, picked, squares_of(normalizer, targets))
        else:
            logits = x @ weight.t() if form is None else product(form, x, packed, head.weight)
            yield rows, losses_of(logits, targets, head, with_count=with_count, with_gradient=False, z_weight=z_weight)


def _chunks_of(x_ND: Tensor, head: Columns, chunks: int, z_weight: float) -> Iterator[slice]:
    """Yield the tokens of each chunk; a fused kernel takes more, so that the table's gradient is summed less often."""
    is_large = x_ND.is_cuda and chunks == 1 and is_fused(x_ND, head, z_weight)
    size = HEAD_TOKENS_FUSED if is_large else HEAD_TOKENS
    for start in range(0, len(x_ND), size):
        yield slice(start, start + size)
