"""Multi-head self-attention: a stacked query, key and value projection, attention, and the output projection.

::

    x_BTD --qkv [3, H·K, D]--> q, k, v [B, H, T, K] --softmax(q kᵀ / √K) v--> [B, T, H·K] --out--> [B, T, D]

`hornbook.ops.attention` has the operators between the two projections.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol, Required

import torch
from torch import Tensor, nn

from hornbook.model.initialize import Draw
from hornbook.model.layers import Dropout, Linear, MakeLinear, StackedLinear, is_unmodified
from hornbook.ops.attention import (
    Limits,
    WeightDropout,
    attention,
    blocked_attention,
    cached_attention,
    causal_attention,
    document_mask,
    head_keys,
    rotate,
)
from hornbook.ops.layers import stacked_linear
from hornbook.ops.native.attention import attention as native_attention
from hornbook.ops.native.kernels import Form, form_of
from hornbook.ops.sequence_groups import GroupSize, SequenceGroups, SpacedSequences, take
from hornbook.ops.spans import Spans
from hornbook.ops.triton.operators import triton_attention


class KeyValues(Protocol):
    """The keys and values of growing texts, for a forward pass of their new tokens."""

    mask: Tensor | None
    """``[B, 1, T, S]``, bool (True: may attend) or added to the scores. None if all tokens are new (T = S), for causal
    attention, or only one (T = 1), which attends to all."""

    def of(self, owner: nn.Module, num_heads: int, head_size: int) -> Tensor:
        """Return the keys and values ``[B, 2, num_heads, S, head_size]`` of a module, which writes the T new ones."""
        ...


class Context(SequenceGroups, SpacedSequences, total=False):
    """The tensors that blocks need besides the hidden states, computed once per micro-batch; a model may add entries.

    Encoders have the entries of ``SequenceGroups``, and GroupBERT those of ``SpacedSequences``.
    """

    keys: Required[Tensor]
    """int64 ``[B, T]`` in [0, 2³²): the dropout key of each token."""
    tokens: Tensor
    """int64 ``[B, T]``, decoders only."""
    embedding: Tensor
    """``[B, T, D]``, decoders with ``residual_scales`` only: the embedding's result."""
    positions: Tensor
    """int64 ``[B, T]``, decoders only: the position of each token in its window, from 0."""
    mask: Tensor
    """bool ``[B, 1, T, T]``, decoders with ``documents`` and no ``spans``: True where a token may attend to another."""
    documents: Tensor
    """int64 ``[B, T]``, decoders with ``data.document_mask`` only: the document of each token."""
    spans: Spans
    """Only if Triton computes attention. Encoders then have no groups, nor for native attention."""
    group_keys: Tensor
    """int64 ``[R]``, encoders only: ``keys`` in the order of ``gather_index``."""
    firsts: Tensor
    """int64 ``[S]``, in host memory: the flat index of the first token of each sequence, or of each masked document."""
    lengths: Tensor
    """int64 ``[S]``, in host memory: the number of tokens of each of them."""
    rotation: tuple[Tensor, Tensor]
    local_rotation: tuple[Tensor, Tensor]
    """Cosines and sines, fp32 ``[B, T, R/2]``, of decoders with rotary positions; local in layers with a window."""
    cache: KeyValues
    """In generation only: keys and values of earlier tokens; see ``attend``."""


def attend(
    owner: nn.Module,
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    context: Context,
    *,
    dropout: WeightDropout | None = None,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """Return the attention ``[B, H, T, K]`` of a decoder's tokens to the same and earlier ones.

    In generation, the earlier ones are in the context's cache, to which this adds the keys and values of the new ones.

    Args:
        owner: the module whose keys and values these are.
        q_BHTK: queries.
        k_BGTK: keys, with G heads, a divisor of H.
        v_BGTK: values, of the shape of the keys.
        context: of the block.
        dropout: of the attention weights, if any.
        window: how many tokens each one attends to, with itself; None: all earlier ones.
        cap: soft limit of the scores, if any.
    """
    cache, limits = context.get("cache"), Limits(window, cap)
    if cache is None:
        mask = context.get("mask")
        if mask is None and "documents" in context:
            mask = document_mask(context["documents"])
        return causal_attention(q_BHTK, k_BGTK, v_BGTK, mask=mask, dropout=dropout, limits=limits)
    _, num_heads, _, head_size = k_BGTK.shape
    return cached_attention(q_BHTK, k_BGTK, v_BGTK, cache.of(owner, num_heads, head_size), cache.mask, limits)


class QueryKeyValue(StackedLinear):
    """Query, key and value as one product, ``[..., D]`` to ``[..., 3·H·K]``."""

    def draw(self, draw: Draw) -> None:
        """Initialize the parameters; the weight's seed uses its name in early checkpoints, ``attention.qkv_weight``."""
        parent = Draw(draw.seed, draw.prefix.rpartition(".")[0], draw.cut)
        parent.normal(self.weight, "qkv_weight", self.std, is_uniform=self.is_uniform)
        draw.constant(self.bias, 0.0)


class SelfAttention(nn.Module, ABC):
    """The base of self-attentions: stacked projection, output projection, dropout of the attention weights.

    Args:
        hidden_size: D.
        num_heads: H, the heads that this module holds.
        head_size: K, independent of D / H.
        num_kv_heads: G, a divisor of H: each head of keys and values serves H / G consecutive query heads
            (grouped-query attention, Ainslie et al. 2023). None: H, in one product with the queries.
        dropout: of the attention weights.
        std: standard deviation of the initial query, key and value weights.
        out_std: standard deviation of the initial output projection.
        qkv_bias: whether query, key and value have biases.
        out_bias: whether the output projection has a bias.
        first_head: index in the model of the module's first head, on which dropout depends; ranks may hold some heads.
        make_linear: factory of the output projection.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_size: int,
        *,
        num_kv_heads: int | None = None,
        dropout: Dropout,
        std: float,
        out_std: float,
        qkv_bias: bool = True,
        out_bias: bool = True,
        first_head: int = 0,
        make_linear: MakeLinear = Linear,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.first_head = num_heads, head_size, first_head
        self.num_kv_heads = num_kv_heads or num_heads
        if self.num_kv_heads == num_heads:
            self.qkv = QueryKeyValue(hidden_size, num_heads * head_size, 3, std=std, bias=qkv_bias)
        else:
            self.query = Linear(hidden_size, num_heads * head_size, std=std, bias=qkv_bias)
            self.key_value = StackedLinear(hidden_size, self.num_kv_heads * head_size, 2, std=std, bias=qkv_bias)
        self.dropout = dropout
        self.out = make_linear(num_heads * head_size, hidden_size, std=out_std, bias=out_bias)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Return the output ``[B, T, D]`` for hidden states ``[B, T, D]``; see ``mix`` for ``context``."""
        y_BTD: Tensor = self.out(self.mix(self.qkv(x_BTD), context))
        return y_BTD

    @abstractmethod
    def mix(self, packed_BTE: Tensor, context: Context) -> Tensor:
        """Return the attention ``[B, T, H·K]``, given the output of ``qkv``; it uses no weights."""

    def split(self, packed_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, each ``[B, H, T, K]``, given the output of ``qkv``."""
        shape = (*packed_BTE.shape[:2], 3, self.num_heads, self.head_size)
        q, k, v = packed_BTE.view(shape).unbind(2)  # whose gradients are stacked in this layout, in one pass
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def native_form(self, packed_BTE: Tensor, context: Context) -> Form | None:
        """Return the form for ``attend_natively``; None if PyTorch computes.

        It does with a cache or documents that are not contiguous, and for subclasses that override ``split``.
        """
        is_of_sequences = "cache" not in context and ("mask" not in context or "firsts" in context)
        is_own = type(self).split is SelfAttention.split
        return form_of("attention", packed_BTE) if is_own and is_of_sequences else None

    def attend_natively(
        self,
        form: Form,
        context: Context,
        qkv: Tensor,
        key_value: Tensor | None = None,
        value: Tensor | None = None,
        *,
        is_causal: bool,
        **heads: Any,
    ) -> Tensor:
        """Return the attention ``[B, T, H·K]`` of a batch's sequences or windows, computed by native operators.

        Args:
            form: of the native operator.
            context: of the block; windows are whole rows, or the documents of them.
            qkv: of flat tokens, see `hornbook.ops.native.attention`.
            key_value: likewise.
            value: likewise.
            is_causal: whether tokens attend only to themselves and earlier tokens, of windows.
            heads: how queries and keys are compared, likewise.
        """
        batch, length = context["keys"].shape
        if "firsts" in context:
            firsts_S, lengths_S = context["firsts"], context["lengths"]
        else:
            firsts_S, lengths_S = torch.arange(batch) * length, torch.full((batch,), length)
        dropout = self.weight_dropout(context["keys"].flatten().unsqueeze(0)) if self.dropout.drops else None
        keys_HN, site, probability = (None, 0, 0.0) if dropout is None else (dropout.keys[0], *dropout[1:])
        sequences = (firsts_S, lengths_S, is_causal, keys_HN, site, probability)
        columns_S = firsts_S % length if is_causal else None  # dropout is by the place in a window, or in a sequence
        y_NHK, _ = native_attention(qkv, *sequences, form.isa, columns_S, key_value, value, **heads)
        return torch.flatten(y_NHK, 1).view(batch, length, -1)

    def attends_by_spans(self, context: Context) -> bool:
        """Return whether ``attend_spans`` computes the attention of ``packed``, the output of ``qkv``."""
        return "spans" in context and "cache" not in context

    def attend_spans(
        self,
        context: Context,
        qkv: Tensor,
        key_value: Tensor | None = None,
        value: Tensor | None = None,
        *,
        is_causal: bool,
        scale: float = 1.0,
        window: int | None = None,
        cap: float | None = None,
    ) -> Tensor:
        """Return the attention ``[B, T, H·K]``, computed by Triton's kernel.

        Args:
            context: with ``spans``.
            qkv: of flat tokens, ``[N, 3, H, K]``, or queries ``[N, H, K]``.
            key_value: ``[N, 2, G, K]``, or keys ``[N, G, K]``, if ``qkv`` is only the queries.
            value: ``[N, G, K]``, if ``key_value`` is only the keys.
            is_causal: whether tokens attend only to themselves and earlier tokens.
            scale: of the scores, besides 1 / √K.
            window: a token attends only to tokens that are less than this away; None: no limit.
            cap: soft limit of the scores, if any.
        """
        keys_N = context["keys"].flatten() if self.dropout.drops else None
        spans_4N, longest = context["spans"]
        probability = self.dropout.probability if self.dropout.drops else 0.0
        limits = (is_causal, scale / math.sqrt(self.head_size), window, cap, probability)
        dropout = (longest, keys_N, self.first_head, self.dropout.site if self.dropout.drops else 0)
        y_NHK, *_ = triton_attention(qkv, key_value, value, spans_4N, *limits, *dropout)
        return torch.flatten(y_NHK, 1).view(*context["keys"].shape, -1)

    def weight_dropout(self, keys_BT: Tensor) -> WeightDropout:
        """Return the dropout of the attention weights."""
        keys_BHT = head_keys(keys_BT, self.num_heads, self.first_head)
        return WeightDropout(keys_BHT, self.dropout.site, self.dropout.probability)


class CausalSelfAttention(SelfAttention):
    """Self-attention to the same and earlier tokens, with ``mask`` only to those of the same document."""

    is_incremental = True

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        is_own = type(self).mix is CausalSelfAttention.mix and type(self).split is SelfAttention.split
        if not (x_BTD.is_cuda and is_own and is_unmodified(self.qkv, QueryKeyValue)) or self._is_tritons(context):
            mixed_BTE = self.mix(self.qkv(x_BTD), context)
        else:
            parts_BTE, shape = stacked_linear(x_BTD, self.qkv.weight, self.qkv.bias), (self.num_heads, self.head_size)
            q_BHTK, k_BHTK, v_BHTK = (torch.unflatten(part, -1, shape).transpose(1, 2) for part in parts_BTE)
            mixed_BTE = self._attend(q_BHTK, k_BHTK, v_BHTK, context)
        y_BTD: Tensor = self.out(mixed_BTE)
        return y_BTD

    def mix(self, packed_BTE: Tensor, context: Context) -> Tensor:
        packed_NE, shape = packed_BTE.flatten(0, 1), (3, self.num_heads, self.head_size)
        if (form := self.native_form(packed_BTE, context)) is not None:
            return self.attend_natively(form, context, torch.unflatten(packed_NE, 1, shape), is_causal=True)
        if type(self).split is SelfAttention.split and self._is_tritons(context):
            return self.attend_spans(context, torch.unflatten(packed_NE, 1, shape), is_causal=True)
        return self._attend(*self.split(packed_BTE), context)

    def _attend(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
        dropout = self.weight_dropout(context["keys"]) if self.dropout.drops else None
        return attend(self, q_BHTK, k_BHTK, v_BHTK, context, dropout=dropout).transpose(1, 2).flatten(2)

    def _is_tritons(self, context: Context) -> bool:
        """Return whether Triton computes attention; without dropout and documents, PyTorch's is faster."""
        return (self.dropout.drops or "documents" in context) and self.attends_by_spans(context)


class BlockedCausalSelfAttention(CausalSelfAttention):
    """Causal self-attention computed by blocks of queries, without the scores of keys beyond a block's end.

    Args:
        block_size: queries of a block.
        others: see ``SelfAttention``.
    """

    is_incremental = True

    def __init__(self, *others: Any, block_size: int, **options: Any) -> None:
        super().__init__(*others, **options)
        self.block_size = block_size

    def mix(self, packed_BTE: Tensor, context: Context) -> Tensor:
        if "cache" in context:
            return super().mix(packed_BTE, context)
        dropout = self.weight_dropout(context["keys"]) if self.dropout.drops else None
        q_BHTK, k_BHTK, v_BHTK = self.split(packed_BTE)
        y_BHTK = blocked_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True, dropout=dropout, block_size=self.block_size)
        return y_BHTK.transpose(1, 2).flatten(2)


class EncoderSelfAttention(SelfAttention):
    """Self-attention to all tokens of the same sequence, for any layout of the batch.

    ::

        x_BTD -> qkv, flat [B·T, 3·H·K] -> rows of the groups -> attention [G, H, t, K], group by group -> back -> out

    Padding is masked and attends to nothing: its output is the bias of the output projection. Dropout hashes the
    position *in the sequence*, so it does not depend on the layout of the batch.

    Attributes:
        reach: how many tokens on either side each one attends to; None: all of the sequence.
    """

    reach: int | None = None

    def mix(self, packed_BTE: Tensor, context: Context) -> Tensor:
        """Return the attention within each sequence; ``context`` has the entries of ``SequenceGroups``."""
        packed_NE, angles_NR = packed_BTE.flatten(0, 1), self.angles(context)
        window = None if self.reach is None else self.reach + 1
        if (form := self.native_form(packed_BTE, context)) is not None:
            heads: dict[str, Any] = dict(zip(("cosines_NR", "sines_NR"), angles_NR, strict=False))
            qkv_N3HK = torch.unflatten(packed_NE, 1, (3, self.num_heads, self.head_size))
            return self.attend_natively(form, context, qkv_N3HK, is_causal=False, window=window, **heads)
        if angles_NR:
            q_k_NHK, v_NHK = torch.unflatten(packed_NE, -1, (-1, self.head_size)).tensor_split((2 * self.num_heads,), 1)
            packed_NE = torch.cat((rotate(q_k_NHK, *angles_NR), v_NHK), 1).flatten(1)
        if "spans" in context:
            qkv_N3HK = torch.unflatten(packed_NE, 1, (3, self.num_heads, self.head_size))
            return self.attend_spans(context, qkv_N3HK, is_causal=False, window=window)
        if "gather_index" in context:
            gather_index, scatter_index = context["gather_index"], context["scatter_index"]
            groups = context["group_sizes"]
            rows = (take(packed_NE, gather_index, scatter_index), context["is_token"], context["group_keys"])
            lengths = [num_sequences * length for num_sequences, length, _ in groups]
            mixed = [packed_NE.new_empty(0, self.num_heads * self.head_size)]
            parts = zip(*(torch.split(tensor, lengths) for tensor in rows), groups, strict=True)
            mixed += [self._attend(packed, is_token, keys, size) for packed, is_token, keys, size in parts]
            y_NC = take(torch.cat(mixed), scatter_index, gather_index)
        else:
            y_NC = self._attend(packed_NE, None, context["keys"].flatten(), context["group_sizes"][0])
        return y_NC.view(*packed_BTE.shape[:2], -1)

    def angles(self, context: Context) -> tuple[Tensor, ...]:
        """Return the cosines and sines ``[N, K/2]`` by which queries and keys are rotated; empty: they are not."""
        return ()

    def _attend(self, packed_RE: Tensor, is_token_R: Tensor | None, keys_R: Tensor, size: GroupSize) -> Tensor:
        """Return ``[G·t, H·K]`` for the rows of one group."""
        *shape, is_padded = size
        is_token_Gt = is_token_R.view(shape) if is_token_R is not None and is_padded else None
        dropout = self.weight_dropout(keys_R.view(shape)) if self.dropout.drops else None
        heads = self.split(packed_RE.view(*shape, -1))
        y_GHtK = attention(*heads, is_token_BT=is_token_Gt, dropout=dropout, reach=self.reach)
        return y_GHtK.transpose(1, 2).flatten(2).flatten(0, 1)
