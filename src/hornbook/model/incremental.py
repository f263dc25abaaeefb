"""The model as generation runs it: new tokens come in, the keys and values of the old ones are kept.

    tokens [B, T], positions [B, T] --embedding--> x_BTD --block 0, cache 0--> ... --> x_BTD --head--> logits [B, V]
                                                            [B, 2, H, S, K]: the last T of its S columns are written

The training path knows nothing of it: `incremental` reads the weights out of a `LanguageModel` and runs them as plain
functions. For one token of a small model, calling modules and casting weights costs more than the products, and without
that it is two to four times as fast. The price: the formula of a block is written a second time, here, and the weights
are copied once, cast to the dtype of the activations. Blocks of one's own join by ``incremental_block.register``.
"""

from collections.abc import Sequence
from functools import singledispatch
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.attention import CausalSelfAttention
from hornbook.model.block import PreNormBlock
from hornbook.model.feed_forward import FeedForward
from hornbook.model.head import TiedHead
from hornbook.model.language_model import LanguageModel
from hornbook.model.layers import LayerNorm, Linear
from hornbook.ops.attention import cpu_causal_attention, fits
from hornbook.ops.layer_norm import affine_dtype, layer_norm

_WAY = ("forward", "embed", "make_context")
"""What a model must have of `LanguageModel` to be run by the plain way of this module."""


class IncrementalBlock(Protocol):
    """A block that is given new tokens and a cache."""

    cache_shape: tuple[int, int]
    """(H, K): what it keeps of a token is 2·H·K numbers."""

    def __call__(self, x_BTD: Tensor, cache_B2HSK: Tensor, mask: Tensor | None) -> Tensor:
        """Return the new tokens' hidden states.

        Args:
            x_BTD: the T new tokens.
            cache_B2HSK: what the block keeps of S tokens; the last T columns are the new tokens', to be written here.
            mask: ``[B, 1, T, S]``, bool (True: may look) or to be added to the scores. Without one, all tokens are new,
                T = S, or one is, T = 1.
        """
        ...


class IncrementalModel:
    """A language model whose blocks all keep keys and values.

    On a CPU they are kept in fp32 whatever the activations are: the attention of one query is memory traffic and
    conversions there, and in bf16 takes five times as long.

    Args:
        model: its weights are read now; it is not to be trained while this is in use.
        blocks: its blocks.
    """

    def __init__(self, model: LanguageModel, blocks: Sequence[IncrementalBlock]) -> None:
        self.device, dtype = model.device, model.compute_dtype
        self.cache_shapes = [block.cache_shape for block in blocks]
        self.cache_dtype = torch.float32 if self.device.type == "cpu" else dtype
        self.max_positions = model.max_positions
        self._embedding, self._blocks, self._head = model.embedding, blocks, model.head
        self._table: Tensor | None = None
        if type(model.head) is TiedHead:
            self._norm = _Norm.of(model.head.norm, dtype)
            self._table = _laid_out(model.head.table[: model.vocab_size], dtype)

    @torch.inference_mode()
    def logits(
        self, tokens_BT: Tensor, positions_BT: Tensor, caches: Sequence[Tensor], mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits ``[B, V]``, fp32, of the tokens after the last column.

        Args:
            tokens_BT: int64, the new tokens.
            positions_BT: int64.
            caches: for each block ``[B, 2, H, S, K]``, see ``IncrementalBlock``.
            mask: see ``IncrementalBlock``.
        """
        x_BTD = self._embedding(tokens_BT, positions_BT, tokens_BT)  # no dropout, so no keys
        for block, cache in zip(self._blocks, caches, strict=True):
            x_BTD = block(x_BTD, cache, mask)
        x_BD = x_BTD[:, -1]
        if self._table is None:
            return self._head.logits(x_BD)
        return functional.linear(self._norm.normalize(x_BD), self._table).float()


def incremental(model: LanguageModel) -> IncrementalModel | None:
    """Return the model as generation runs it, or None if it has a block that keeps nothing, or a way of its own."""
    if any(getattr(type(model), name) is not getattr(LanguageModel, name) for name in _WAY):
        return None
    blocks = [incremental_block(block, model.compute_dtype) for block in model.blocks]
    known = [block for block in blocks if block is not None]
    return IncrementalModel(model, known) if len(known) == len(blocks) else None


@singledispatch
def incremental_block(block: nn.Module, dtype: torch.dtype) -> IncrementalBlock | None:
    """Return a block that does the same with a cache, or None if there is none: then every token computes all anew.

    Args:
        block: its type chooses the function (``incremental_block.register`` adds one).
        dtype: of the activations.
    """
    return None


class _Affine(NamedTuple):
    """Weight and bias of a linear map."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> "_Affine":
        return cls(_laid_out(weight, dtype), None if bias is None else bias.detach().to(dtype))

    def map(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class _Norm(NamedTuple):
    """Weight, bias and epsilon of a layer norm."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    @classmethod
    def of(cls, norm: LayerNorm, dtype: torch.dtype) -> "_Norm":
        dtype = affine_dtype(dtype, norm.weight.device)
        return cls(norm.weight.detach().to(dtype), norm.bias.detach().to(dtype), norm.epsilon)

    def normalize(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.epsilon)


def _laid_out(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``weight`` ``[out, in]`` in ``dtype``, laid out in memory as products with one or few rows like it.

    MKL's fp32 product of a matrix and a vector reads columns up to twice as fast as rows; oneDNN's bf16 does not.
    """
    weight = weight.detach().to(dtype)
    return weight.t().contiguous().t() if weight.device.type == "cpu" and dtype == torch.float32 else weight


class _IncrementalPreNorm:
    """``PreNormBlock`` in evaluation, given new tokens alone."""

    def __init__(self, block: PreNormBlock, dtype: torch.dtype) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        self.cache_shape = (attention.num_heads, attention.head_size)
        self._attention_norm = _Norm.of(block.attention_norm, dtype)
        self._qkv = _Affine.of(attention.qkv_weight.flatten(0, 1), attention.qkv_bias, dtype)
        self._out = _Affine.of(attention.out.weight, attention.out.bias, dtype)
        self._feed_forward_norm = _Norm.of(block.feed_forward_norm, dtype)
        self._up = _Affine.of(feed_forward.up.weight, feed_forward.up.bias, dtype)
        self._activation = feed_forward.activation
        self._down = _Affine.of(feed_forward.down.weight, feed_forward.down.bias, dtype)

    def __call__(self, x_BTD: Tensor, cache_B2HSK: Tensor, mask: Tensor | None) -> Tensor:
        num_rows, num_new, _ = x_BTD.shape
        packed = self._qkv.map(self._attention_norm.normalize(x_BTD))
        qkv_BT3HK = packed.view(num_rows, num_new, 3, *self.cache_shape)
        mixed_BTHK = attend(qkv_BT3HK, cache_B2HSK, mask)
        x_BTD = x_BTD + self._out.map(mixed_BTHK.flatten(2))
        return x_BTD + self._down.map(self._activation(self._up.map(self._feed_forward_norm.normalize(x_BTD))))


@incremental_block.register
def _of_pre_norm(block: PreNormBlock, dtype: torch.dtype) -> IncrementalBlock | None:
    """A block that is ``PreNormBlock`` to the letter; what a subclass or another part does is not known here."""
    linears = (block.attention.out, block.feed_forward.up, block.feed_forward.down)
    norms = (block.attention_norm, block.feed_forward_norm)
    is_plain = (
        type(block) is PreNormBlock
        and type(block.attention) is CausalSelfAttention
        and type(block.feed_forward) is FeedForward
        and all(type(linear) is Linear for linear in linears)
        and all(type(norm) is LayerNorm for norm in norms)
    )
    return _IncrementalPreNorm(block, dtype) if is_plain else None


def attend(qkv_BT3HK: Tensor, cache_B2HSK: Tensor, mask: Tensor | None) -> Tensor:
    """Write the new tokens' keys and values into the last T columns of the cache, and let their queries look at it.

    Args:
        qkv_BT3HK: query, key and value of the T new tokens.
        cache_B2HSK: keys and values; fp32 or the dtype of the tokens.
        mask: see ``IncrementalBlock``.

    Returns:
        ``[B, T, H, K]``.
    """
    num_new, num_columns = qkv_BT3HK.shape[1], cache_B2HSK.shape[3]
    q_BHTK, k_BHTK, v_BHTK = qkv_BT3HK.permute(2, 0, 3, 1, 4)
    new_B2HTK = qkv_BT3HK.narrow(2, 1, 2).permute(0, 2, 3, 1, 4)
    cache_B2HSK.narrow(3, num_columns - num_new, num_new).copy_(new_B2HTK)
    if num_new < num_columns:
        keys_BHSK, values_BHSK = cache_B2HSK.unbind(1)
        queries_BHTK = q_BHTK.to(keys_BHSK.dtype)
        y_BHTK = functional.scaled_dot_product_attention(queries_BHTK, keys_BHSK, values_BHSK, attn_mask=mask)
    elif mask is None and fits(q_BHTK):
        y_BHTK = cpu_causal_attention(q_BHTK, k_BHTK, v_BHTK)
    else:
        y_BHTK = functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask, is_causal=mask is None)
    return y_BHTK.transpose(1, 2).to(qkv_BT3HK.dtype)
