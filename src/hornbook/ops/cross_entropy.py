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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.config.shapes import HEAD_TOKENS, HEAD_TOKENS_FUSED
from hornbook.ops.native.cross_entropy import cross_entropy_
from hornbook.ops.native.kernels import FORMS, form_of
from hornbook.ops.native.products import Products
from hornbook.ops.output_columns import Columns, first_largest, first_of_ranks
from hornbook.ops.tensor_parallel import enter
from hornbook.ops.triton.operators import chosen, triton_cross_entropy
from hornbook.parallel.ranks import Cut, cut_of, is_cut, local
from hornbook.samples.windows import NOT_SCORED


class _Chunk(NamedTuple):
    """The results of a chunk of tokens."""

    losses: Tensor
    """fp32, in nats; 0 for tokens that are not scored."""
    num_correct: Tensor
    """Number of correct predictions; 0 if not requested."""
    gradient: Tensor
    """Gradient of the logits in the dtype of the hidden states; undefined if not requested."""
    bias_gradient: Tensor
    """fp32; undefined if there is no bias or it is not requested."""


class _LinearCrossEntropy(torch.autograd.Function):
    """The summed losses and the number of correct predictions; with weights, the weighted and the unweighted sum."""

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
    ) -> tuple[Tensor, Tensor]:
        total, weighted, num_correct = (torch.zeros((), dtype=torch.float32, device=x_ND.device) for _ in range(3))
        x_gradient = torch.empty_like(x_ND)
        weight_gradient = torch.zeros_like(weight_VD, dtype=torch.float32)
        bias_gradient = None if bias_V is None else torch.zeros_like(bias_V, dtype=torch.float32)
        native = _native_products(x_ND, weight_VD) if FORMS and chunks == 1 else None
        weight = weight_VD.to(x_ND.dtype) if native is None and chunks == 1 else weight_VD
        for rows in _chunks_of(x_ND):
            x, targets, weights = x_ND[rows], targets_N[rows], None if weights_N is None else weights_N[rows]
            if chunks > 1:
                sums = (x_gradient[rows], weight_gradient, bias_gradient)
                picked, right = _add_by_parts(x, targets, head.parts(chunks), *sums, weights, with_count=with_count)
                total -= picked.sum()
                weighted -= 0.0 if weights is None else picked @ weights
                num_correct += right
                continue
            chunk = _chunk(  # no variable refers to the logits, so that they are freed
                x @ weight.t() if native is None else native.product(x),
                targets,
                head,
                with_count=with_count,
                with_gradient=True,
            )
            total += chunk.losses.sum()
            num_correct += chunk.num_correct
            if weights is not None:
                weighted += chunk.losses @ weights
                chunk.gradient.mul_(weights.unsqueeze(1))
            if native is None:
                torch.mm(chunk.gradient, weight, out=x_gradient[rows])
                weight_gradient += chunk.gradient.t() @ x
            else:
                native.input_gradient(chunk.gradient, x_gradient[rows])
                native.add_weight_gradient(chunk.gradient, x, weight_gradient)
            if bias_gradient is not None:
                bias_gradient += chunk.bias_gradient
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
        loss, beside = (total, num_correct) if weights_N is None else (weighted, total)
        ctx.mark_non_differentiable(beside)
        ctx.cut = head.cut
        return loss, beside

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, (x_gradient, weight_gradient, bias_gradient) = gradients[0], ctx.saved_tensors
        # in fp32: in bf16, the scale of the trunk's gradients, but not the table's, could be 0.2 % off
        scaled = (x_gradient.float() * scale).to(x_gradient.dtype)
        if ctx.cut is not None:
            scaled = ctx.cut.sum(scaled)  # over the ranks' columns
        # in place, since it is as large as the table, unless the pass is repeated, as in zero-bubble schedules
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        weight_gradient = weight_gradient * scale if is_kept else weight_gradient.mul_(scale)
        return scaled, weight_gradient, None if bias_gradient is None else bias_gradient * scale, *[None] * 5


def linear_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int, chunks: int = 1
) -> Tensor:
    """Return the sum of the cross-entropies of ``softmax(x Wᵀ)``.

    Args:
        x_ND: hidden states ``[N, D]``, of any floating dtype.
        weight_VD: output table ``[V, D]``, fp32. Its gradient is the fp32 sum of a product per chunk, each rounded to
            the dtype of ``x``.
        targets_N: ``[N]`` int64; ``NOT_SCORED`` (-100) is ignored.
        vocab_size: number of columns without padding.
        chunks: parts of the columns to compute one after the other; 1: all at once.

    Returns:
        fp32 scalar, in nats.
    """
    if not torch.is_grad_enabled():
        return token_losses(x_ND, weight_VD, targets_N, vocab_size, chunks=chunks).sum()
    head = _columns_of(weight_VD, None, vocab_size)
    arguments = (x_ND, head.weight, None, targets_N, head, False, chunks)
    total: Tensor = _LinearCrossEntropy.apply(*arguments)[0]  # type: ignore[no-untyped-call]
    return total


def weighted_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, weights_N: Tensor, vocab_size: int, chunks: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the weighted and the unweighted sum of the cross-entropies of ``softmax(x Wᵀ)``.

    Both are fp32 scalars, the second without a gradient. ``weights_N`` is fp32, without a gradient; other arguments as
    for ``linear_cross_entropy``.
    """
    if not torch.is_grad_enabled():
        losses_N = token_losses(x_ND, weight_VD, targets_N, vocab_size, chunks=chunks)
        return losses_N @ weights_N, losses_N.sum()
    head = _columns_of(weight_VD, None, vocab_size)
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
    bias_V: Tensor | None = None,
    chunks: int = 1,
) -> Tensor:
    """Return each token's cross-entropy in nats, ``[N]`` fp32, 0 where the target is ``NOT_SCORED``."""
    losses_N = torch.empty(x_ND.shape[0], dtype=torch.float32, device=x_ND.device)
    for rows, chunk in _chunks(x_ND, targets_N, _columns_of(weight_VD, bias_V, vocab_size), chunks, with_count=False):
        losses_N[rows] = chunk.losses
    return losses_N


def vocabulary_logits(x: Tensor, weight_VD: Tensor, vocab_size: int, bias_V: Tensor | None = None) -> Tensor:
    """Return the logits ``[..., vocab_size]`` in fp32 of hidden states ``[..., D]``; without gradients if split."""
    if not is_cut(weight_VD):
        bias = None if bias_V is None else bias_V.to(x.dtype)
        return functional.linear(x, weight_VD[:vocab_size].to(x.dtype), bias).float()
    own = functional.linear(x, local(weight_VD).to(x.dtype))
    logits = cut_of(weight_VD).concatenated(own)[..., :vocab_size]
    return (logits if bias_V is None else logits + bias_V.to(x.dtype)).float()


def _columns_of(weight_VD: Tensor, bias_V: Tensor | None, vocab_size: int) -> Columns:
    """Return this rank's columns of a table ``[V, D]``."""
    if not is_cut(weight_VD):
        return Columns(weight_VD, bias_V, vocab_size)
    cut, weight = cut_of(weight_VD), local(weight_VD)
    first = cut.rank * len(weight)
    num_real = min(max(vocab_size - first, 0), len(weight))
    bias = None if bias_V is None else enter(bias_V, cut)[first : first + num_real]
    return Columns(weight, bias, num_real, first, cut)


def _own_columns(scores: Tensor, targets: Tensor, head: Columns) -> tuple[Tensor, Tensor]:
    """Return each target's column in ``head``, arbitrary if it has none, and whether it has one."""
    columns = targets - head.first
    is_own = (columns >= 0) & (columns < scores.shape[1])
    return columns.masked_fill(~is_own, 0), is_own


def _chunks(
    x_ND: Tensor, targets_N: Tensor, head: Columns, chunks: int, *, with_count: bool
) -> Iterator[tuple[slice, _Chunk]]:
    """Yield the slice and the results of each chunk of tokens."""
    native = _native_products(x_ND, head.weight) if FORMS and chunks == 1 else None
    weight = head.weight.to(x_ND.dtype) if native is None and chunks == 1 else head.weight
    for rows in _chunks_of(x_ND):
        x, targets = x_ND[rows], targets_N[rows]
        if chunks > 1:
            _, picked, num_correct = _summary(x, targets, head.parts(chunks), with_count=with_count)
            yield rows, _Chunk(-picked, num_correct, picked, picked)
        else:
            logits = x @ weight.t() if native is None else native.product(x)
            yield rows, _chunk(logits, targets, head, with_count=with_count, with_gradient=False)


def _chunks_of(x_ND: Tensor) -> Iterator[slice]:
    """Yield the tokens of each chunk; a fused kernel takes more, so that the table's gradient is summed less often."""
    size = HEAD_TOKENS_FUSED if FORMS and chosen("triton_cross_entropy", x_ND) else HEAD_TOKENS
    for start in range(0, len(x_ND), size):
        yield slice(start, start + size)


def _native_products(x_ND: Tensor, weight_VD: Tensor) -> Products | None:
    """Return the products with the table, packed once for all chunks; None if PyTorch computes them."""
    form = form_of("linear", x_ND) if weight_VD.dtype == torch.float32 else None
    return None if form is None else Products(form, weight_VD, x_ND.dtype)


def _chunk(logits: Tensor, targets: Tensor, head: Columns, *, with_count: bool, with_gradient: bool) -> _Chunk:
    """Return losses and gradients, given logits without the bias, which are overwritten."""
    is_fp32 = head.bias is None or head.bias.dtype == torch.float32
    if FORMS and is_fp32 and head.cut is None and (form := form_of("cross_entropy", logits)) is not None:
        losses, predictions, bias_gradient = cross_entropy_(
            logits, targets, head.bias, head.num_real, with_gradient, with_count, form.isa
        )
        num_correct = (predictions == targets).sum() if with_count else losses.new_zeros(())
        return _Chunk(losses, num_correct, logits, bias_gradient)
    if FORMS and is_fp32 and head.cut is None and chosen("triton_cross_entropy", logits):
        losses, predictions = triton_cross_entropy(logits, targets, head.bias, head.num_real, with_gradient)
        num_correct = (predictions == targets).sum() if with_count else losses.new_zeros(())
        has_bias = with_gradient and head.bias is not None
        return _Chunk(
            losses, num_correct, logits, logits[:, : head.num_real].sum(0, dtype=torch.float32) if has_bias else losses
        )
    _complete(logits, head)
    log_probabilities = (
        torch.log_softmax(logits, -1, dtype=torch.float32) if head.cut is None else _log_softmax(logits, head.cut)
    )
    columns, is_own = _own_columns(log_probabilities, targets, head)
    losses = -log_probabilities.gather(1, columns.unsqueeze(1)).squeeze(1).masked_fill(~is_own, 0.0)
    if head.cut is not None:
        losses = head.cut.sum(losses)
    num_correct = _num_correct(log_probabilities, targets, head) if with_count else losses.new_zeros(())
    if not with_gradient:
        return _Chunk(losses, num_correct, losses, losses)
    exact = log_probabilities.exp_()  # becomes softmax − onehot, and zero for rows that are not scored
    exact.scatter_add_(1, columns.unsqueeze(1), -is_own.to(exact.dtype).unsqueeze(1))
    exact[targets == NOT_SCORED] = 0.0
    bias_gradient = losses if head.bias is None else exact[:, : head.num_real].sum(0)
    return _Chunk(losses, num_correct, exact.to(logits.dtype), bias_gradient)


def _add_by_parts(
    x: Tensor,
    targets: Tensor,
    parts: "list[Columns]",
    x_gradient: Tensor,
    weight_gradient: Tensor,
    bias_gradient: Tensor | None,
    weights: Tensor | None,
    *,
    with_count: bool,
) -> tuple[Tensor, Tensor]:
    """Write or add the gradients of a chunk's losses, one part of the columns after the other.

    Returns:
        The log-probability of each target and the number of correct predictions; see ``_summary``.
    """
    normalizer, picked, num_correct = _summary(x, targets, parts, with_count=with_count)
    of_x = torch.zeros_like(x, dtype=torch.float32)
    for part in parts:
        compute_weight, first = part.weight.to(x.dtype), part.first - parts[0].first
        exact = _complete(x @ compute_weight.t(), part).float().sub_(normalizer).exp_()
        columns, is_own = _own_columns(exact, targets, part)
        exact.scatter_add_(1, columns.unsqueeze(1), -is_own.to(exact.dtype).unsqueeze(1))
        exact[targets == NOT_SCORED] = 0.0
        if weights is not None:
            exact *= weights.unsqueeze(1)
        gradient = exact.to(x.dtype)
        of_x += gradient @ compute_weight
        weight_gradient[first : first + len(compute_weight)] += gradient.t() @ x
        if bias_gradient is not None:
            bias_gradient[first : first + part.num_real] += exact[:, : part.num_real].sum(0)
    x_gradient.copy_(of_x)
    return picked, num_correct


def _summary(x: Tensor, targets: Tensor, parts: "list[Columns]", *, with_count: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce the logits of a chunk of tokens, one part of the columns after the other.

    Returns:
        The logarithm of the sum of all exponentials, fp32 ``[C, 1]``; the log-probability of each target, fp32 ``[C]``,
        0 if it is not scored; the number of correct predictions.
    """
    cut = parts[0].cut
    largest = x.new_full((len(x), 1), torch.finfo(torch.float32).min, dtype=torch.float32)
    total, picked = torch.zeros_like(largest), torch.zeros_like(largest).squeeze(1)
    predicted = torch.zeros_like(targets)
    for part in parts:
        logits = _complete(x @ part.weight.to(x.dtype).t(), part).float()
        best = logits.amax(1, keepdim=True)
        if with_count:
            predicted = torch.where(best > largest, first_largest(logits)[:, None] + part.first, predicted[:, None])
            predicted = predicted.squeeze(1)
        columns, is_own = _own_columns(logits, targets, part)
        picked += logits.gather(1, columns.unsqueeze(1)).squeeze(1).masked_fill(~is_own, 0.0)
        higher = torch.maximum(largest, best)
        total = total * (largest - higher).exp_() + (logits - higher).exp_().sum(1, keepdim=True)
        largest = higher
    top = largest if cut is None else cut.largest(largest.clone())
    if cut is not None:
        total, picked = cut.sum(total * (largest - top).exp_()), cut.sum(picked)
    normalizer = total.log_() + top
    picked -= normalizer.squeeze(1).masked_fill(targets == NOT_SCORED, 0.0)
    if not with_count:
        return normalizer, picked, picked.new_zeros(())
    if cut is not None:
        predicted = first_of_ranks(predicted, (largest == top).squeeze(1), cut)
    return normalizer, picked, (predicted == targets).sum()


def _log_softmax(logits: Tensor, cut: Cut) -> Tensor:
    """Return the log-probabilities of this rank's columns, fp32, with the softmax over the columns of all ranks."""
    logits = logits.float()
    logits -= cut.largest(logits.amax(1, keepdim=True))
    logits -= cut.sum(logits.exp().sum(1, keepdim=True)).log_()
    return logits


def _complete(logits: Tensor, head: Columns) -> Tensor:
    """Add the bias to logits and set those of padding to minus infinity, in place."""
    if head.bias is not None:
        logits[:, : head.num_real] += head.bias.to(logits.dtype)
    logits[:, head.num_real :] = -torch.inf
    return logits


def _num_correct(log_probabilities: Tensor, targets: Tensor, head: Columns) -> Tensor:
    """Return the number of targets with the largest log-probability."""
    predicted = first_largest(log_probabilities)
    if head.cut is not None:
        own = log_probabilities.gather(1, predicted.unsqueeze(1)).squeeze(1)
        predicted = first_of_ranks(predicted + head.first, own == head.cut.largest(own.clone()), head.cut)
    return (predicted == targets).sum()
