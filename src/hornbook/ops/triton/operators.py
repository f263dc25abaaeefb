"""The operators of Triton's kernels, for PyTorch's dispatcher: kernels are imported when they first run.

``precision.kernels`` selects them as it selects native operators (`hornbook.ops.native.kernels`); `chosen` says whether
they compute for a tensor.
"""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.native.kernels import FORMS, note_sums
from hornbook.ops.operators import operator, shapes_of

TRITON = "triton"
"""The form of these kernels."""
KERNELS = (
    "triton_cross_entropy", "triton_dropout", "triton_layer_norm", "triton_linear", "triton_attention",
    "triton_embedding", "triton_adamw",
)  # fmt: skip
_WIDEST_HEADS = {torch.float32: 64, torch.bfloat16: 256, torch.float16: 256}
"""Of attention, whose accumulators are in registers."""


def chosen(kernel: str, x: Tensor) -> bool:
    """Return whether a kernel of ``KERNELS`` computes for ``x``, on a GPU, because the run selected it."""
    return x.is_cuda and FORMS.get(kernel) == TRITON and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


@operator(changes=(0,), device="any")
def triton_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    num_real: int,
    with_gradient: bool,
    cap: float | None = None,
    z_weight: float = 0.0,
    first: int = 0,
    summaries: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of rows of logits, and change the logits to the gradient of their sum.

    Args:
        logits: ``[N, V]``, rows contiguous.
        targets: ``[N]`` int64; negative ones are not scored.
        bias: ``[num_real]`` fp32, added to the logits; None for none.
        num_real: number of columns without padding, whose logits are ignored and whose gradients are zero.
        with_gradient: otherwise, the logits are unchanged.
        cap: logits become ``cap tanh(logit / cap)``, after the bias; None: no limit.
        z_weight: gradients are those of the losses plus this many times the squared logarithms of the softmax's sums.
        first: the token of the first column.
        summaries: fp32 ``[ranks, 4, N]``, each rank's `triton_summary`, if the columns are split over ranks.

    Returns:
        Losses in nats ``[N]`` fp32, 0 if not scored; first tokens with the largest logit ``[N]`` int64; logarithms of
        the softmax's sums ``[N]`` fp32, 0 if not scored.
    """
    from hornbook.ops.triton.cross_entropy import cross_entropy_

    settings = (cap, z_weight, first, summaries)
    return cross_entropy_(logits, targets, bias, num_real, *settings, with_gradient=with_gradient)


@shapes_of("triton_cross_entropy")
def _(logits: Tensor, targets: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    losses, log_sums = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
    return losses, torch.empty_like(targets), log_sums


@operator(device="any")
def triton_summary(
    logits: Tensor, targets: Tensor, bias: Tensor | None, num_real: int, cap: float | None, first: int
) -> Tensor:
    """Return what other ranks need of this rank's columns; arguments as for ``triton_cross_entropy``.

    Returns:
        fp32 ``[4, N]``: the largest logit; the first token with it, as the bits of an int32; the sum of exponentials
        of the differences from it; the logit of the target, 0 if the target is not among the columns.
    """
    from hornbook.ops.triton.cross_entropy import summarize

    return summarize(logits, targets, bias, num_real, cap, first)


@shapes_of("triton_summary")
def _(logits: Tensor, *others: Any) -> Tensor:
    return logits.new_empty(4, len(logits), dtype=torch.float32)


@operator(device="any", has_gradient=True)
def triton_dropout(x: Tensor, residual: Tensor | None, keys: Tensor, site: int, probability: float) -> Tensor:
    """Return ``residual + drop(x)``, or ``drop(x)``; arguments as for `hornbook.ops.dropout.dropout`."""
    from hornbook.ops.triton.dropout import dropout

    return dropout(x, residual, keys, site, probability)


@shapes_of("triton_dropout")
def _(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


def _keep_keys(ctx: Any, inputs: Any, output: Any) -> None:
    _, residual, keys, *ctx.settings = inputs
    ctx.save_for_backward(keys)
    ctx.adds = residual is not None


def _of_dropout(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_x: Tensor | None = None
    if ctx.needs_input_grad[0]:
        of_x, sums = triton_dropout_gradient(gradient, *ctx.saved_tensors, *ctx.settings)
        if not torch.compiler.is_compiling():
            note_sums(of_x, sums)
    return of_x, gradient if ctx.adds else None, None, None, None


@operator(device="any")
def triton_dropout_gradient(gradient: Tensor, keys: Tensor, site: int, probability: float) -> tuple[Tensor, Tensor]:
    """Return the gradient of what was dropped, and its sums over the rows, fp32 ``[C]``."""
    from hornbook.ops.triton.summed_gradients import dropout_gradient

    return dropout_gradient(gradient, keys, site, probability)


@shapes_of("triton_dropout_gradient")
def _(gradient: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return gradient.new_empty(gradient.shape), gradient.new_empty(gradient.shape[-1], dtype=torch.float32)


torch.library.register_autograd("hornbook::triton_dropout", _of_dropout, setup_context=_keep_keys)


def can_attend(dtype: torch.dtype, head_size: int) -> bool:
    """Return whether ``triton_attention`` takes heads of a dtype and size."""
    return head_size <= _WIDEST_HEADS.get(dtype, 0)


@operator(device="any", has_gradient=True)
def triton_attention(
    qkv: Tensor,
    key_value: Tensor | None,
    value: Tensor | None,
    spans_4N: Tensor,
    is_causal: bool,
    scale: float,
    window: int | None,
    cap: float | None,
    probability: float,
    longest: int,
    keys_N: Tensor | None,
    first_head: int,
    site: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attention within the sequences of flat tokens, and what its gradient needs.

    Args:
        qkv: query, key and value ``[N, 3, H, K]``, or queries ``[N, H, K]``; fp32, bf16 or fp16.
        key_value: keys and values ``[N, 2, G, K]``, or keys ``[N, G, K]``, if ``qkv`` has only queries.
        value: values ``[N, G, K]``, if ``key_value`` has only keys.
        spans_4N: int32, see `hornbook.ops.spans`.
        is_causal: whether tokens attend only to themselves and earlier tokens.
        scale: of the products of queries and keys.
        window: a token attends only to tokens that are less than this away; None: no limit.
        cap: scores become ``cap tanh(score / cap)``; None: no limit.
        probability: share of the weights to drop, in [0, 1).
        longest: most tokens between the first of a sequence and its end.
        keys_N: int64 in [0, 2³²), the tokens' dropout keys; None for no dropout.
        first_head: index in the model of the first of these heads, on which dropout depends.
        site: number of the dropout in the model.

    Returns:
        ``[N, H, K]`` in the dtype of ``qkv``, zero for padding; logarithms to base 2 of the softmax's sums, fp32
        ``[H, N]``; bits of the weights that are dropped, int32 ``[H, W, N]``, with W = 0 if none are.
    """
    from hornbook.ops.triton import attention

    settings = attention.Settings(is_causal, scale, window, cap, probability)
    if keys_N is None:
        dropped = qkv.new_empty(qkv.shape[-2], 0, qkv.shape[0], dtype=torch.int32)
    else:
        dropped = attention.hash_dropped(qkv.shape[-2], spans_4N, longest, keys_N, (first_head, site), settings)
    return *attention.forward(_packed(qkv, key_value, value), spans_4N, dropped, settings), dropped


@shapes_of("triton_attention")
def _(qkv: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    from hornbook.ops.triton.programs import num_words

    num_tokens, (num_heads, size) = qkv.shape[0], qkv.shape[-2:]  # `len` would fix the number
    is_causal, _, window, _, _, longest, keys, *_ = others[3:]
    words = 0 if keys is None else num_words(longest, window, is_causal=is_causal)
    log_sums = qkv.new_empty(num_heads, num_tokens, dtype=torch.float32)
    dropped = qkv.new_empty(num_heads, words, num_tokens, dtype=torch.int32)
    return qkv.new_empty(num_tokens, num_heads, size), log_sums, dropped


@operator(device="any")
def triton_attention_gradients(
    gradient: Tensor,
    y: Tensor,
    log_sums: Tensor,
    dropped: Tensor,
    qkv: Tensor,
    key_value: Tensor | None,
    value: Tensor | None,
    spans_4N: Tensor,
    is_causal: bool,
    scale: float,
    window: int | None,
    cap: float | None,
    probability: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of ``qkv``, ``key_value`` and ``value``, empty for None, given that of the attention.

    The last result are the sums over the tokens of the gradient of ``qkv``, fp32 ``[3·H·K]`` or ``[H·K]``.
    """
    from hornbook.ops.triton import attention

    settings = attention.Settings(is_causal, scale, window, cap, probability)
    packed = _packed(qkv, key_value, value)
    found, sums = attention.backward(gradient, y, log_sums, packed, spans_4N, dropped, settings)
    of_qkv, of_key_value, of_value = found + [qkv.new_empty(0) for _ in range(3 - len(found))]
    return of_qkv, of_key_value, of_value, sums[0].flatten()


@shapes_of("triton_attention_gradients")
def _(gradient: Tensor, y: Tensor, log_sums: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_qkv, of_key_value, of_value = (gradient.new_empty(0 if x is None else x.shape) for x in others[1:4])
    return of_qkv, of_key_value, of_value, gradient.new_empty(of_qkv.shape[1:].numel(), dtype=torch.float32)


def _packed(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors with heads side by side in a token."""
    given = (tensor for tensor in tensors if tensor is not None)
    return tuple(x if not len(x) or x[0].is_contiguous() else x.contiguous() for x in given)


def _keep_attention(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*output, *inputs[:4])
    ctx.settings = inputs[4:9]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # the gradients of these would be zeros


def _of_attention(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: recomputation allows no more
    *found, sums = triton_attention_gradients(gradient, *saved, *ctx.settings)
    if not torch.compiler.is_compiling():
        note_sums(found[0], sums)
    of_packed = (None if x is None else of for x, of in zip(saved[3:6], found, strict=True))
    return *of_packed, *[None] * 10


torch.library.register_autograd("hornbook::triton_attention", _of_attention, setup_context=_keep_attention)
