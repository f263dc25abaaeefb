"""Softmax attention of sequences on a CPU, directly on the output of the projections, one group of heads at a time.

::

    q, k --RMS norm of each head, rotation--> q', k'     v
    scores = scale q' k'ᵀ, capped, of the keys in the window --softmax, dropout--> weights --weights v--> y

Sequences are anywhere in the flat tokens, so packed batches need no copies; nothing of size T × T is stored, nor are q'
and k'. Dropout is the hash of `hornbook.ops.dropout.keep_mask`, whose columns count from the beginning of the sequence.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hornbook.ops.attention import attention as torch_attention
from hornbook.ops.attention import causal_attention
from hornbook.ops.dropout import keep_mask
from hornbook.ops.native.kernels import SUFFIXES, Form
from hornbook.ops.native.trials import Kernel
from hornbook.ops.operators import operator, scalar_with_gradient, shapes_of


class Sequences(NamedTuple):
    """Which tokens attend to each other, and the dropout of the weights; see ``attention``."""

    firsts: Tensor
    lengths: Tensor
    is_causal: bool
    keys: Tensor | None = None
    site: int = 0
    probability: float = 0.0
    columns: Tensor | None = None


class Heads(NamedTuple):
    """How queries and keys are compared; see ``attention``."""

    cosines: Tensor | None = None
    sines: Tensor | None = None
    q_gain: Tensor | None = None
    k_gain: Tensor | None = None
    norm_epsilon: float | None = None
    scale: float | None = None
    window: int | None = None
    cap: float | None = None


_PLAIN = Heads()


@operator(has_gradient=True)
def attention(
    qkv: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    is_causal: bool,
    keys_HN: Tensor | None,
    site: int,
    probability: float,
    isa: str,
    columns_S: Tensor | None = None,
    key_value: Tensor | None = None,
    value: Tensor | None = None,
    cosines_NR: Tensor | None = None,
    sines_NR: Tensor | None = None,
    q_gain_K: Tensor | None = None,
    k_gain_K: Tensor | None = None,
    norm_epsilon: float | None = None,
    scale: float | None = None,
    window: int | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``drop(softmax(scale q kᵀ)) v`` and the logarithms of the softmax's sums.

    Args:
        qkv: stacked query, key and value ``[N, 3, H, K]``, fp32 or bf16, flat tokens; or queries ``[N, H, K]``.
        firsts_S: int64, index of each sequence's first token; sequences must not overlap.
        lengths_S: int64, number of tokens of each sequence.
        is_causal: whether the attention is causal.
        keys_HN: int64 in [0, 2³²), one per head and token; None for no dropout.
        site: number of the dropout in the model.
        probability: share of weights to drop, in [0, 1).
        isa: instruction set of the form for this operator and its gradients.
        columns_S: int64, the dropout column of each sequence's first token; None for 0.
        key_value: keys and values ``[N, 2, G, K]``, or keys ``[N, G, K]``, if ``qkv`` has only queries. Each of the G
            heads belongs to H / G consecutive heads of queries (Ainslie et al. 2023).
        value: values ``[N, G, K]``, if ``key_value`` has only keys.
        cosines_NR: fp32 ``[N, R/2]``, of the angles by which columns i and i + R/2 of queries and keys are rotated
            (Su et al. 2021); None for no rotation.
        sines_NR: likewise.
        q_gain_K: fp32, of the queries' norm; None for 1.
        k_gain_K: fp32, of the keys' norm.
        norm_epsilon: of an RMS norm of each query and key before the rotation; None for no norm.
        scale: of the scores; None for 1 / √K.
        window: a token attends only to tokens that are less than this away; None: no limit.
        cap: scores become ``cap tanh(score / cap)``; None: no limit.

    Returns:
        ``[N, H, K]`` in the dtype of ``qkv``, zero for tokens of no sequence, and ``[H, N]`` fp32.
    """
    q_NHK, k_NGK, v_NGK = _split(*(tensor.contiguous() for tensor in (qkv, key_value, value) if tensor is not None))
    make = torch.empty if int(lengths_S.sum()) == len(q_NHK) else torch.zeros  # of tokens in no sequence
    y_NHK, log_sums_HN = make(q_NHK.shape, dtype=q_NHK.dtype), make(q_NHK.shape[1], len(q_NHK))
    sequences = Sequences(firsts_S, lengths_S, is_causal, keys_HN, site, probability, columns_S)
    heads = Heads(cosines_NR, sines_NR, q_gain_K, k_gain_K, norm_epsilon, scale, window, cap)
    problem = _problem(q_NHK, k_NGK, sequences, heads)
    name = f"attention_forward_{SUFFIXES[q_NHK.dtype]}"
    Form(isa)(name, *problem, q_NHK, k_NGK, v_NGK, y_NHK, log_sums_HN, torch.get_num_threads())
    return y_NHK, log_sums_HN


@shapes_of("attention")
def _(qkv: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
    num_tokens, (num_heads, size) = len(qkv), qkv.shape[-2:]
    return qkv.new_empty(num_tokens, num_heads, size), qkv.new_empty(num_heads, num_tokens, dtype=torch.float32)


@operator()
def attention_backward(
    gradient_NHK: Tensor,
    log_sums_HN: Tensor,
    qkv: Tensor,
    firsts_S: Tensor,
    lengths_S: Tensor,
    keys_HN: Tensor | None,
    columns_S: Tensor | None,
    key_value: Tensor | None,
    value: Tensor | None,
    cosines_NR: Tensor | None,
    sines_NR: Tensor | None,
    q_gain_K: Tensor | None,
    k_gain_K: Tensor | None,
    is_causal: bool,
    site: int,
    probability: float,
    norm_epsilon: float | None,
    scale: float | None,
    window: int | None,
    cap: float | None,
    isa: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of ``qkv``, ``key_value``, ``value`` and both gains, empty for None.

    Arguments as for ``attention``.
    """
    packed = [tensor.contiguous() for tensor in (qkv, key_value, value) if tensor is not None]
    q_NHK, k_NGK, v_NGK = _split(*packed)
    make = torch.empty if int(lengths_S.sum()) == len(q_NHK) else torch.zeros
    of_packed = [make(tensor.shape, dtype=tensor.dtype) for tensor in packed]
    of_gains = [None if gain is None else torch.zeros_like(gain) for gain in (q_gain_K, k_gain_K)]
    sequences = Sequences(firsts_S, lengths_S, is_causal, keys_HN, site, probability, columns_S)
    heads = Heads(cosines_NR, sines_NR, q_gain_K, k_gain_K, norm_epsilon, scale, window, cap)
    Form(isa)(
        f"attention_backward_{SUFFIXES[q_NHK.dtype]}", *_problem(q_NHK, k_NGK, sequences, heads), q_NHK, k_NGK, v_NGK,
        log_sums_HN, gradient_NHK.contiguous(), *_split(*of_packed), *of_gains, torch.get_num_threads(),
    )  # fmt: skip
    results = (*of_packed, *[None] * (3 - len(of_packed)), *of_gains)
    of_q, of_kv, of_v, of_q_gain, of_k_gain = (qkv.new_empty(0) if of is None else of for of in results)
    return of_q, of_kv, of_v, of_q_gain, of_k_gain


@shapes_of("attention_backward")
def _(gradient: Tensor, log_sums: Tensor, qkv: Tensor, *others: Any) -> tuple[Tensor, ...]:
    key_value, value, _, _, q_gain_K, k_gain_K = others[4:10]
    return tuple(
        qkv.new_empty(0 if x is None else x.shape, dtype=(qkv if x is None else x).dtype)
        for x in (qkv, key_value, value, q_gain_K, k_gain_K)
    )


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    qkv, firsts_S, lengths_S, is_causal, keys_HN, site, probability, isa, columns_S, *others = inputs
    ctx.save_for_backward(output[1], qkv, firsts_S, lengths_S, keys_HN, columns_S, *others[:6])
    ctx.settings = (is_causal, site, probability, *others[6:], isa)
    ctx.mark_non_differentiable(output[1])


def _of_inputs(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: recomputation allows no more
    found = attention_backward(gradient, *saved, *ctx.settings)
    key_value, value, _, _, q_gain, k_gain = saved[6:]
    of_kv, of_v, of_q_gain, of_k_gain = (
        None if tensor is None else of for tensor, of in zip((key_value, value, q_gain, k_gain), found[1:], strict=True)
    )
    return found[0], *[None] * 8, of_kv, of_v, None, None, of_q_gain, of_k_gain, *[None] * 4


torch.library.register_autograd("hornbook::attention", _of_inputs, setup_context=_setup_context)


def _split(*packed: Tensor) -> tuple[Tensor, ...]:
    """Return query ``[N, H, K]``, key and value ``[N, G, K]``: views of ``qkv``, ``key_value`` and ``value``."""
    return tuple(part for tensor in packed for part in (tensor.unbind(1) if tensor.dim() == 4 else (tensor,)))


def _problem(q_NHK: Tensor, k_NGK: Tensor, sequences: Sequences, heads: Heads) -> tuple[Tensor | None, ...]:
    """Return the arguments of both passes in csrc/attention.cpp before the queries."""
    firsts_S, lengths_S, is_causal, keys_HN, site, probability, columns_S = sequences
    num_tokens, num_heads, size = q_NHK.shape
    sizes = [len(firsts_S), num_heads, k_NGK.shape[1], size, num_tokens, int(is_causal), heads.window or 0]
    sizes += [*q_NHK.stride()[:2], *k_NGK.stride()[:2], num_heads * size, size, site, int(probability * (1 << 31))]
    sizes.append(0 if heads.cosines is None else heads.cosines.shape[1])
    scale = 1.0 / math.sqrt(max(size, 1)) if heads.scale is None else heads.scale
    epsilon = -1.0 if heads.norm_epsilon is None else heads.norm_epsilon
    factors = torch.tensor([scale, 1.0 / (1.0 - probability), heads.cap or 0.0, epsilon], dtype=torch.float32)
    tensors = (keys_HN, firsts_S, lengths_S, columns_S, *heads[:4])
    return torch.tensor(sizes), factors, *(None if tensor is None else tensor.contiguous() for tensor in tensors)


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with its formula in float64: three sequences, bidirectional and causal, with every option."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    qkv_N3HK, gradient_NHK = drawn(90, 3, 2, 19).to(dtype), drawn(90, 2, 19).to(dtype)
    firsts_S, lengths_S = torch.tensor([1, 7, 9]), torch.tensor([6, 1, 81])
    keys_HN = torch.randint(1 << 32, (2, 90), generator=generator)
    causal = Sequences(firsts_S, lengths_S, is_causal=True)
    dropped = Sequences(firsts_S, lengths_S, False, keys_HN, 3, 0.3, torch.tensor([0, 5, 7]))
    grouped = (drawn(90, 2, 19).to(dtype), drawn(90, 2, 1, 19).to(dtype))
    angles, gains = drawn(90, 7), drawn(2, 19)
    options = Heads(angles.cos(), angles.sin(), gains[0], gains[1], 1e-5, scale=0.5, window=17, cap=2.0)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for packed, sequences, heads in (
        ((qkv_N3HK,), causal, Heads()),
        ((qkv_N3HK,), dropped, Heads()),
        (grouped, causal, options),
    ):
        ours = outputs_of(form, gradient_NHK, packed, sequences, heads)
        pairs = zip(ours, exact_attention(gradient_NHK, packed, sequences, heads), strict=True)
        if not all((own.double() - right).abs().max() <= tolerance * (1.0 + right.abs().max()) for own, right in pairs):
            return False
    return True


def outputs_of(
    form: Form, gradient_NHK: Tensor, packed: tuple[Tensor, ...], sequences: Sequences, heads: Heads = _PLAIN
) -> list[Tensor]:
    """Return attention and the gradients of ``packed`` and of the gains by a form; see ``exact_attention``."""
    qkv, *others = (*packed, None, None)[:3]
    firsts_S, lengths_S, is_causal, keys_HN, *dropout, columns_S = sequences
    given = (firsts_S, lengths_S, is_causal, keys_HN, *dropout, form.isa, columns_S)
    y_NHK, log_sums_HN = attention(qkv, *given, *others, *heads)
    tensors = (qkv, firsts_S, lengths_S, keys_HN, columns_S, *others, *heads[:4])
    found = attention_backward(gradient_NHK, log_sums_HN, *tensors, is_causal, *dropout, *heads[4:], form.isa)
    of = zip(found, (qkv, *others, heads.q_gain, heads.k_gain), strict=True)
    return [y_NHK, *(gradient for gradient, tensor in of if tensor is not None)]


def exact_attention(
    gradient_NHK: Tensor, packed: tuple[Tensor, ...], sequences: Sequences, heads: Heads = _PLAIN
) -> tuple[Tensor, ...]:
    """Return attention and the gradients of ``packed`` and of the gains by PyTorch in float64.

    Normed or rotated queries and keys are rounded to the dtype of ``packed``: a small cap of the scores magnifies that.
    """
    gains = [gain for gain in (heads.q_gain, heads.k_gain) if gain is not None]
    with torch.enable_grad():
        leaves = [tensor.detach().double().requires_grad_() for tensor in (*packed, *gains)]
        q, k, v = _split(*leaves[: len(packed)])
        rest = leaves[len(packed) :]
        q = _stored(entering(q, heads, rest.pop(0) if heads.q_gain is not None else None), packed[0].dtype)
        k = _stored(entering(k, heads, rest.pop(0) if heads.k_gain is not None else None), packed[0].dtype)
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
        y_NHK = q * 0.0  # zeros that depend on the leaves, also without sequences
        for number, (first, length) in enumerate(zip(*(of.tolist() for of in sequences[:2]), strict=True)):
            own = slice(first, first + length)
            weights_Htt = _weights(q[own], k[own], sequences, heads)
            if sequences.keys is not None:
                column = 0 if sequences.columns is None else int(sequences.columns[number])
                drop = sequences.site, column + length, sequences.probability
                kept = keep_mask(sequences.keys[:, own], *drop)[..., column:]
                weights_Htt = weights_Htt * kept / (1.0 - sequences.probability)
            y_NHK = y_NHK.index_add(
                0, torch.arange(first, first + length), torch.einsum("hij,jhk->ihk", weights_Htt, v[own])
            )
        end = scalar_with_gradient(y_NHK, gradient_NHK.double())
        return y_NHK.detach(), *torch.autograd.grad(end, leaves, materialize_grads=True)


def entering(x_NHK: Tensor, heads: Heads, gain_K: Tensor | None) -> Tensor:
    """Return queries or keys as they are multiplied."""
    if heads.norm_epsilon is not None:
        x_NHK = x_NHK * (x_NHK.square().mean(-1, keepdim=True) + heads.norm_epsilon).rsqrt()
        x_NHK = x_NHK if gain_K is None else x_NHK * gain_K
    if heads.cosines is None or heads.sines is None:
        return x_NHK
    cos, sin, half = heads.cosines.unsqueeze(1), heads.sines.unsqueeze(1), heads.cosines.shape[1]
    a, b, rest = x_NHK.tensor_split((half, 2 * half), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def _stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values as ``dtype`` stores them; their gradient is that of ``x``."""
    return x + (x.to(dtype).double() - x).detach()


def _weights(q_tHK: Tensor, k_tHK: Tensor, sequences: Sequences, heads: Heads) -> Tensor:
    """Return the attention weights ``[H, t, t]`` of a sequence, before dropout."""
    scale = 1.0 / math.sqrt(q_tHK.shape[2]) if heads.scale is None else heads.scale
    scores_Htt = torch.einsum("ihk,jhk->hij", q_tHK, k_tHK) * scale
    if heads.cap is not None:
        scores_Htt = heads.cap * torch.tanh(scores_Htt / heads.cap)
    away_tt = torch.arange(len(q_tHK)).unsqueeze(1) - torch.arange(len(q_tHK))
    hidden_tt = away_tt < 0 if sequences.is_causal else torch.zeros_like(away_tt, dtype=torch.bool)
    if heads.window is not None:
        hidden_tt = hidden_tt | (away_tt.abs() >= heads.window)
    return scores_Htt.masked_fill(hidden_tt, -math.inf).softmax(-1)


def _trial(form: Form | None, dtype: torch.dtype, sequence_length: int, head_size: int) -> None:
    """Run attention of four heads and 256 tokens forward and backward, causal and bidirectional."""
    qkv_N3HK = torch.ones(sequence_length, 3, 4, head_size, dtype=dtype)
    gradient_NHK = torch.ones(sequence_length, 4, head_size, dtype=dtype)
    for is_causal in (True, False):
        if form is None:
            with torch.enable_grad():
                leaf_N3HK = qkv_N3HK.detach().requires_grad_()
                qkv_1HtK = leaf_N3HK.unsqueeze(0).permute(2, 0, 3, 1, 4)
                y_1HtK = causal_attention(*qkv_1HtK) if is_causal else torch_attention(*qkv_1HtK)
                y_1tHK = y_1HtK.transpose(1, 2)
                torch.autograd.grad(scalar_with_gradient(y_1tHK, gradient_NHK.unsqueeze(0)), leaf_N3HK)
        else:
            sequences = Sequences(torch.tensor([0]), torch.tensor([sequence_length]), is_causal)
            outputs_of(form, gradient_NHK, (qkv_N3HK,), sequences)


KERNELS = (
    Kernel("attention_f32", torch.float32, _agrees, _trial, sizes=("sequence_length", "head_size")),
    Kernel("attention_bf16", torch.bfloat16, _agrees, _trial, sizes=("sequence_length", "head_size")),
)
