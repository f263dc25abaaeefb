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
three numbers per token: the largest logit, the sum of exponentials, and the logit of the target. Triton's kernel has
them gathered at once, with the largest logit's token; PyTorch's operators sum one after the other over the ranks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.config.shapes import HEAD_TOKENS, HEAD_TOKENS_FUSED
from hornbook.ops.mixed_linear import is_mixed, write_product
from hornbook.ops.native.cross_entropy import cross_entropy_
from hornbook.ops.native.kernels import copy_of, form_of
from hornbook.ops.native.linear import linear_weight_gradient, panels_of, product
from hornbook.ops.tensor_parallel import gathered
from hornbook.ops.triton.operators import chosen, triton_cross_entropy, triton_summary
from hornbook.ops.vocabulary_parts import (
    Columns,
    add_by_parts,
    complete,
    first_largest,
    first_of_ranks,
    own_columns,
    squares_of,
    summary_of,
)
from hornbook.parallel.ranks import Cut
from hornbook.samples.windows import NOT_SCORED


class Chunk(NamedTuple):
    """The results of a chunk of tokens."""

    losses: Tensor
    """fp32, in nats; 0 for tokens that are not scored."""
    num_correct: Tensor
    """Number of correct predictions; 0 if not requested."""
    gradient: Tensor
    """Gradient of the logits in the dtype of the hidden states; undefined if not requested."""
    bias_gradient: Tensor
    """fp32; undefined if there is no bias or it is not requested."""
    squares: Tensor | float = 0.0
    """fp32, the square of the logarithm of each scored token's sum of exponentials; 0 if not requested."""


class _LinearCrossEntropy(torch.autograd.Function):
    """See ``linear_cross_entropy``."""

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
        weights_N: Tensor | None,
        z_weight: float,
    ) -> tuple[Tensor, Tensor]:
        total, weighted, num_correct, squares = (x_ND.new_zeros((), dtype=torch.float32) for _ in range(4))
        copied = head.table if chunks == 1 and x_ND.is_cuda and is_mixed(x_ND, weight_VD) else None  # once a step
        is_written = copied is not None and len(x_ND) > 0  # by the first product
        weight_gradient = (torch.empty_like if is_written else torch.zeros_like)(weight_VD, dtype=torch.float32)
        x_gradient = torch.empty_like(x_ND)
        bias_gradient = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        form = form_of("linear", x_ND) if chunks == 1 and weight_VD.dtype == torch.float32 else None
        weight, panels = weight_VD, list[Tensor]()
        if form is not None:  # packed once for all chunks of tokens
            panels = [panels_of(form, weight_VD, x_ND.dtype, for_gradient=back) for back in (False, True)]
        elif chunks == 1:
            weight = weight_VD.to(x_ND.dtype) if copied is None else copy_of(copied, x_ND.dtype)
        for rows in _chunks_of(x_ND, head, chunks):
            x, targets, weights = x_ND[rows], targets_N[rows], None if weights_N is None else weights_N[rows]
            if chunks > 1:
                given = (x_gradient[rows], weight_gradient, bias_gradient, weights, z_weight)
                picked, right, square = add_by_parts(x, targets, head.parts(chunks), *given, with_count=with_count)
                total, squares, num_correct = total - picked.sum(), squares + square, num_correct + right
                weighted -= 0.0 if weights is None else picked @ weights
                continue
            chunk = _losses_of(  # no variable refers to the logits, nor does a partial, so that they are freed
                x @ weight.t() if form is None else product(form, x, panels[0], weight_VD), targets, head,
                with_count=with_count, with_gradient=True, z_weight=z_weight,
            )  # fmt: skip
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
    targets_N: Tensor,
    head: Columns,
    chunks: int = 1,
    *,
    with_count: bool = False,
    weights_N: Tensor | None = None,
    z_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ + b)`` in nats, and a sum beside it.

    Both are fp32 scalars, the second without a gradient.

    Args:
        x_ND: hidden states ``[N, D]``, of any floating dtype.
        targets_N: ``[N]`` int64; ``NOT_SCORED`` (-100) is ignored.
        head: W and b, fp32. The gradient of W is the fp32 sum of a product per chunk, each rounded to the dtype of
            ``x``.
        chunks: parts of the columns to compute one after the other; 1: all at once.
        with_count: whether the second sum is the number of correct predictions. Of equal logits, which are frequent in
            bf16, the first is the prediction.
        weights_N: fp32, factors of the tokens' cross-entropies, without a gradient; the second sum has none of them.
        z_weight: if not 0, the second sum is that of the squared log-sums of exponentials, and the gradient of the
            first is that of both, the second times this (z-loss, Chowdhery et al. 2022, PaLM, section 5).
    """
    if torch.is_grad_enabled():
        arguments = (x_ND, head.weight, head.bias, targets_N, head, with_count, chunks, weights_N, z_weight)
        loss, beside = _LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
        return loss, beside
    if not with_count and not z_weight:
        losses_N = token_losses(x_ND, targets_N, head, chunks)
        unweighted = losses_N.sum()
        return unweighted if weights_N is None else losses_N @ weights_N, unweighted
    total, beside = (torch.zeros((), dtype=torch.float32, device=x_ND.device) for _ in range(2))
    for _, chunk in _chunks(x_ND, targets_N, head, chunks, with_count=with_count, z_weight=z_weight):
        total += chunk.losses.sum()
        beside += chunk.squares if z_weight else chunk.num_correct
    return total, beside


@torch.no_grad()
def token_losses(x_ND: Tensor, targets_N: Tensor, head: Columns, chunks: int = 1) -> Tensor:
    """Return each token's cross-entropy in nats, ``[N]`` fp32, 0 where the target is ``NOT_SCORED``."""
    losses_N = torch.empty(x_ND.shape[0], dtype=torch.float32, device=x_ND.device)
    for rows, chunk in _chunks(x_ND, targets_N, head, chunks, with_count=False):
        losses_N[rows] = chunk.losses
    return losses_N


def _chunks(
    x_ND: Tensor, targets_N: Tensor, head: Columns, chunks: int, *, with_count: bool, z_weight: float = 0.0
) -> Iterator[tuple[slice, Chunk]]:
    """Yield the slice and the results of each chunk of tokens."""
    form = form_of("linear", x_ND) if chunks == 1 and head.weight.dtype == torch.float32 else None
    packed = head.weight if form is None else panels_of(form, head.weight, x_ND.dtype, for_gradient=False)
    weight = head.weight.to(x_ND.dtype) if form is None and chunks == 1 else head.weight
    for rows in _chunks_of(x_ND, head, chunks):
        x, targets = x_ND[rows], targets_N[rows]
        if chunks > 1:
            normalizer, picked, num_correct = summary_of(x, targets, head.parts(chunks), with_count=with_count)
            yield rows, Chunk(-picked, num_correct, picked, picked, squares_of(normalizer, targets))
        else:
            logits = x @ weight.t() if form is None else product(form, x, packed, head.weight)
            yield rows, _losses_of(logits, targets, head, with_count=with_count, with_gradient=False, z_weight=z_weight)


def _chunks_of(x_ND: Tensor, head: Columns, chunks: int) -> Iterator[slice]:
    """Yield the tokens of each chunk; a fused kernel takes more, so that the table's gradient is summed less often."""
    is_large = x_ND.is_cuda and chunks == 1 and _is_fused(x_ND, head)
    size = HEAD_TOKENS_FUSED if is_large else HEAD_TOKENS
    for start in range(0, len(x_ND), size):
        yield slice(start, start + size)


def _losses_of(
    logits: Tensor, targets: Tensor, head: Columns, *, with_count: bool, with_gradient: bool, z_weight: float = 0.0
) -> Chunk:
    """Return losses and gradients, given logits without the bias, which are overwritten."""
    is_fp32 = head.bias is None or head.bias.dtype == torch.float32
    if is_fp32 and head.cut is None and (form := form_of("cross_entropy", logits)) is not None:
        losses, predictions, bias_gradient, log_sums = cross_entropy_(
            logits, targets, head.bias, head.num_real, with_gradient, with_count, form.isa, head.cap, z_weight
        )
        num_correct = (predictions == targets).sum() if with_count else losses.new_zeros(())
        return Chunk(losses, num_correct, logits, bias_gradient, log_sums.square().sum() if z_weight else 0.0)
    if logits.is_cuda and _is_fused(logits, head):
        summaries, given = None, (logits, targets, head.bias, head.num_real)
        if head.cut is not None:
            summary = triton_summary(*given, head.cap, head.first).unsqueeze(0)
            summaries = gathered(summary, head.cut.group, dist.get_world_size(head.cut.group))
        settings = (with_gradient, head.cap, z_weight, head.first, summaries)
        losses, predictions, log_sums = triton_cross_entropy(*given, *settings)
        num_correct = (predictions == targets).sum() if with_count else losses.new_zeros(())
        has_bias = with_gradient and head.bias is not None
        bias_gradient = logits[:, : head.num_real].sum(0, dtype=torch.float32) if has_bias else losses
        return Chunk(losses, num_correct, logits, bias_gradient, log_sums.square().sum() if z_weight else 0.0)
    dtype, (logits, slope) = logits.dtype, complete(logits, head)
    log_probabilities, normalizer = _log_softmax(logits, head.cut)
    columns, is_own = own_columns(log_probabilities, targets, head)
    losses = -log_probabilities.gather(1, columns.unsqueeze(1)).squeeze(1).masked_fill(~is_own, 0.0)
    if head.cut is not None:
        losses = head.cut.sum(losses)
    num_correct = _num_correct(log_probabilities, targets, head) if with_count else losses.new_zeros(())
    squares = squares_of(normalizer, targets) if z_weight else 0.0
    if not with_gradient:
        return Chunk(losses, num_correct, losses, losses, squares)
    exact = log_probabilities.exp_()  # becomes softmax − onehot, and zero for rows that are not scored
    if z_weight:
        exact *= 1.0 + 2.0 * z_weight * normalizer
    exact.scatter_add_(1, columns.unsqueeze(1), -is_own.to(exact.dtype).unsqueeze(1))
    exact[targets == NOT_SCORED] = 0.0
    if slope is not None:
        exact *= slope
    bias_gradient = losses if head.bias is None else exact[:, : head.num_real].sum(0)
    return Chunk(losses, num_correct, exact.to(dtype), bias_gradient, squares)


def _is_fused(x: Tensor, head: Columns) -> bool:
    """Return whether Triton's kernel computes losses and gradients, in place, of logits on the GPU of ``x``."""
    return (head.bias is None or head.bias.dtype == torch.float32) and chosen("triton_cross_entropy", x)


def _log_softmax(logits: Tensor, cut: Cut | None) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities, fp32, of this rank's columns among those of all ranks, and ``log Σ exp`` [C, 1]."""
    if cut is None:
        log_probabilities = torch.log_softmax(logits, -1, dtype=torch.float32)
        return log_probabilities, logits[:, :1].float() - log_probabilities[:, :1]
    logits = logits.float()
    largest = cut.largest(logits.amax(1, keepdim=True))
    logits -= largest
    spread = cut.sum(logits.exp().sum(1, keepdim=True)).log_()
    logits -= spread
    return logits, largest + spread


def _num_correct(log_probabilities: Tensor, targets: Tensor, head: Columns) -> Tensor:
    """Return the number of targets with the largest log-probability."""
    predicted = first_largest(log_probabilities)
    if head.cut is not None:
        own = log_probabilities.gather(1, predicted.unsqueeze(1)).squeeze(1)
        predicted = first_of_ranks(predicted + head.first, own == head.cut.largest(own.clone()), head.cut)
    return (predicted == targets).sum()
