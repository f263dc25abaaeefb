"""Softmax attention of sequences on a CPU, directly on the output of the stacked projection, one head at a time.

Sequences are anywhere in the flat tokens, so packed batches need no copies; nothing of size T × T is stored. Dropout
is the hash of `hornbook.ops.dropout.keep_mask`, whose columns count from the beginning of the sequence.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hornbook.ops.attention import attention as torch_attention
from hornbook.ops.attention import causal_attention
from hornbook.ops.dropout import keep_mask
from hornbook.ops.native.kernels import FORMS, form_of
from hornbook.ops.native.library import SUFFIXES, Form, Kernel
from hornbook.ops.operators import operator, shapes_of


def sequence_form(packed: Tensor) -> Form | None:
    """Return the form for stacked query, key and value like ``packed``; None if PyTorch computes attention."""
    return form_of("attention", packed) if FORMS else None


@operator(has_gradient=True)
def attention(
    qkv_N3HK: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    is_causal: bool,
    keys_HN: Tensor | None,
    site: int,
    probability: float,
    isa: str,
    columns_S: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``drop(softmax(q kᵀ / √K)) v`` and the logarithms of the softmax's sums.

    Args:
        qkv_N3HK: fp32 or bf16, flat tokens.
        firsts_S: int64, index of each sequence's first token; sequences must not overlap.
        lengths_S: int64, number of tokens of each sequence.
        is_causal: whether the attention is causal.
        keys_HN: int64 in [0, 2³²), one per head and token; None for no dropout.
        site: number of the dropout in the model.
        probability: share of weights to drop, in [0, 1).
        isa: instruction set of the form for this operator and its gradients.
        columns_S: int64, the dropout column of each sequence's first token; None for 0.

    Returns:
        ``[N, H, K]`` in the dtype of ``qkv``, zero for tokens of no sequence, and ``[H, N]`` fp32.
    """
    sequences = (firsts_S, lengths_S, is_causal, keys_HN, site, probability)
    return _forward(Form(isa), qkv_N3HK, *sequences, columns_S)


@shapes_of("attention")
def _(qkv_N3HK: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    num_tokens, _, num_heads, size = qkv_N3HK.shape
    y_NHK = qkv_N3HK.new_empty(num_tokens, num_heads, size)
    return y_NHK, qkv_N3HK.new_empty(num_heads, num_tokens, dtype=torch.float32)


@operator()
def attention_backward(
    gradient_NHK: Tensor,
    qkv_N3HK: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    keys_HN: Tensor | None,
    columns_S: Tensor | None,
    log_sums_HN: Tensor,
    is_causal: bool,
    site: int,
    probability: float,
    isa: str,
) -> Tensor:
    """Return the gradient of ``qkv``; arguments as for ``attention``."""
    form, sequences = Form(isa), (firsts_S, lengths_S, is_causal, keys_HN, site, probability, columns_S)
    return _backward(form, gradient_NHK, qkv_N3HK, log_sums_HN, *sequences)


@shapes_of("attention_backward")
def _(gradient_NHK: Tensor, qkv_N3HK: Tensor, *others: Any) -> Tensor:
    return qkv_N3HK.new_empty(qkv_N3HK.shape)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    qkv_N3HK, firsts_S, lengths_S, is_causal, keys_HN, site, probability, isa, columns_S = inputs
    ctx.save_for_backward(qkv_N3HK, firsts_S, lengths_S, keys_HN, columns_S, output[1])
    ctx.settings = (is_causal, site, probability, isa)
    ctx.mark_non_differentiable(output[1])


def _of_inputs(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return attention_backward(gradient, *ctx.saved_tensors, *ctx.settings), *[None] * 8


torch.library.register_autograd("hornbook::attention", _of_inputs, setup_context=_setup_context)


def _forward(
    form: Form,
    qkv_N3HK: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    is_causal: bool,
    keys_HN: Tensor | None,
    site: int,
    probability: float,
    columns_S: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    qkv_N3HK = qkv_N3HK.contiguous()
    num_tokens, _, num_heads, size = qkv_N3HK.shape
    make = _for_tokens_of(lengths_S, num_tokens)
    y_NHK, log_sums_HN = make(num_tokens, num_heads, size, dtype=qkv_N3HK.dtype), make(num_heads, num_tokens)
    problem = _problem(qkv_N3HK, firsts_S, lengths_S, is_causal, keys_HN, site, probability, columns_S)
    name = f"attention_forward_{SUFFIXES[qkv_N3HK.dtype]}"
    form(name, *problem, *qkv_N3HK.unbind(1), y_NHK, log_sums_HN, torch.get_num_threads())
    return y_NHK, log_sums_HN


def _backward(
    form: Form,
    gradient_NHK: Tensor,
    qkv_N3HK: Tensor,
    log_sums_HN: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    is_causal: bool,
    keys_HN: Tensor | None,
    site: int,
    probability: float,
    columns_S: Tensor | None = None,
) -> Tensor:
    qkv_N3HK = qkv_N3HK.contiguous()
    make = _for_tokens_of(lengths_S, len(qkv_N3HK))
    of_qkv_N3HK = make(qkv_N3HK.shape, dtype=qkv_N3HK.dtype)
    problem = _problem(qkv_N3HK, firsts_S, lengths_S, is_causal, keys_HN, site, probability, columns_S)
    form(
        f"attention_backward_{SUFFIXES[qkv_N3HK.dtype]}", *problem, *qkv_N3HK.unbind(1), log_sums_HN,
        gradient_NHK.contiguous(), *of_qkv_N3HK.unbind(1), torch.get_num_threads(),
    )  # fmt: skip
    return of_qkv_N3HK


def _for_tokens_of(lengths_S: Tensor, num_tokens: int) -> Callable[..., Tensor]:
    """Return the function that allocates results of ``num_tokens`` tokens, with zeros if some are in no sequence."""
    return torch.empty if int(lengths_S.sum()) == num_tokens else torch.zeros


def _problem(
    qkv_N3HK: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    is_causal: bool,
    keys_HN: Tensor | None,
    site: int,
    probability: float,
    columns_S: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Return the arguments of both passes in csrc/attention.cpp: sizes, factors, dropout keys and sequences."""
    num_tokens, _, num_heads, size = qkv_N3HK.shape
    of_token, _, of_head, _ = qkv_N3HK.stride()
    sizes = [len(firsts_S), num_heads, size, num_tokens, int(is_causal), *[of_token, of_head] * 2]
    sizes += [num_heads * size, size, site, int(probability * (1 << 31))]
    factors = torch.tensor([1.0 / math.sqrt(max(size, 1)), 1.0 / (1.0 - probability)], dtype=torch.float32)
    keys_HN = None if keys_HN is None else keys_HN.contiguous()
    columns_S = None if columns_S is None else columns_S.contiguous()
    return torch.tensor(sizes), factors, keys_HN, firsts_S.contiguous(), lengths_S.contiguous(), columns_S


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with its formula in float64: three sequences, bidirectional and causal, with dropout."""
    generator = torch.Generator().manual_seed(0)
    qkv_N3HK = torch.randn(90, 3, 2, 19, generator=generator).to(dtype)
    gradient_NHK = torch.randn(90, 2, 19, generator=generator).to(dtype)
    firsts_S, lengths_S = torch.tensor([1, 7, 9]), torch.tensor([6, 1, 81])
    keys_HN = torch.randint(1 << 32, (2, 90), generator=generator)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    columns_S = torch.tensor([0, 5, 7])
    dropped = (firsts_S, lengths_S, False, keys_HN, 3, 0.3, columns_S)
    for sequences in ((firsts_S, lengths_S, True, None, 0, 0.0), dropped):
        y_NHK, log_sums_HN = _forward(form, qkv_N3HK, *sequences)
        ours = y_NHK, _backward(form, gradient_NHK, qkv_N3HK, log_sums_HN, *sequences)
        pairs = zip(ours, exact_attention(gradient_NHK, qkv_N3HK, *sequences), strict=True)
        if not all(torch.allclose(own.double(), right, rtol=tolerance, atol=tolerance) for own, right in pairs):
            return False
    return True


def exact_attention(
    gradient_NHK: Tensor,
    qkv_N3HK: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    is_causal: bool,
    keys_HN: Tensor | None,
    site: int,
    probability: float,
    columns_S: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention and the gradient of ``qkv`` by their formulas in float64; arguments as for ``attention``."""
    qkv_N3HK, gradient_NHK = qkv_N3HK.detach().double(), gradient_NHK.double()
    y_NHK, of_qkv_N3HK = torch.zeros_like(gradient_NHK), torch.zeros_like(qkv_N3HK)
    columns_S = torch.zeros_like(firsts_S) if columns_S is None else columns_S
    for first, length, column in zip(firsts_S.tolist(), lengths_S.tolist(), columns_S.tolist(), strict=True):
        own = slice(first, first + length)
        q_HtK, k_HtK, v_HtK = qkv_N3HK[own].permute(1, 2, 0, 3)
        g_HtK, scale = gradient_NHK[own].transpose(0, 1), 1.0 / math.sqrt(q_HtK.shape[2])
        scores_Htt = q_HtK @ k_HtK.mT * scale
        if is_causal:
            scores_Htt = scores_Htt.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
        weights_Htt, kept_Htt = scores_Htt.softmax(-1), torch.ones_like(scores_Htt)
        if keys_HN is not None:
            kept_Htt = keep_mask(keys_HN[:, own], site, column + length, probability)[..., column:] / (
                1.0 - probability
            )
        y_NHK[own] = (weights_Htt * kept_Htt @ v_HtK).transpose(0, 1)
        of_weights_Htt = g_HtK @ v_HtK.mT * kept_Htt
        of_scores_Htt = weights_Htt * (of_weights_Htt - (weights_Htt * of_weights_Htt).sum(-1, keepdim=True)) * scale
        gradients = of_scores_Htt @ k_HtK, of_scores_Htt.mT @ q_HtK, (weights_Htt * kept_Htt).mT @ g_HtK
        of_qkv_N3HK[own] = torch.stack(gradients).permute(2, 0, 1, 3)
    return y_NHK, of_qkv_N3HK


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    """Run attention of four heads and 256 tokens forward and backward, causal and bidirectional."""
    qkv_N3HK, gradient_NHK = torch.ones(256, 3, 4, 64, dtype=dtype), torch.ones(256, 4, 64, dtype=dtype)
    for is_causal in (True, False):
        if form is None:
            with torch.enable_grad():
                leaf_N3HK = qkv_N3HK.detach().requires_grad_()
                qkv_1HtK = leaf_N3HK.unsqueeze(0).permute(2, 0, 3, 1, 4)
                y_1HtK = causal_attention(*qkv_1HtK) if is_causal else torch_attention(*qkv_1HtK)
                torch.autograd.grad(y_1HtK.transpose(1, 2), leaf_N3HK, gradient_NHK.unsqueeze(0))
        else:
            sequences = (torch.tensor([0]), torch.tensor([256]), is_causal, None, 0, 0.0)
            _, log_sums_HN = _forward(form, qkv_N3HK, *sequences)
            _backward(form, gradient_NHK, qkv_N3HK, log_sums_HN, *sequences)


KERNELS = (
    Kernel("attention_f32", torch.float32, _agrees, _trial),
    Kernel("attention_bf16", torch.bfloat16, _agrees, _trial),
)
