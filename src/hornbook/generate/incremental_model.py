"""The model that generation runs: it reads new tokens, with the keys and values of earlier ones in a cache.

    tokens [B, T], positions [B, T] --embedding--> x_BTD --block 0--> ... --> x_BTD --head--> logits [B, V]
                                                   cache [B, 2, H, S, K]: the last T of its S columns are written

Its modules are those of training, with weights cast once to the activations' dtype; in fp32 they are the model's own.
On a CPU, native operators compute one new token per text in a single call, from the first block to the logits, if they
support all blocks (`hornbook.ops.native.token_block`).

The cache of a batch of growing texts has one block of memory per layer, allocated when it first attends. Texts are
aligned on the right, so a new token takes one column in all of them; each starts where its length requires::

    columns    0  1  2  3  4  5  6 ...  capacity
    row 0      .  .  a  b  c  d         start 2       position of a token = its column - the row's start
    row 1      e  f  g  h  i  j         start 0
                            end 6 --^

Rows of different lengths require a mask over the columns before each start; equal ones do not. The price of shared
columns: a row that restarts further right leaves a gap, so the cache of texts that outgrow the model's positions has
half as many columns again, and moves its content to the left when they are used up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hornbook.model import LanguageModel
from hornbook.model.attention import CausalSelfAttention
from hornbook.model.block import FeedForward, PreNormBlock
from hornbook.model.decoder import DecoderAttention, KeyShift, ShortcutBlock, ValueEmbedding
from hornbook.model.head import CausalHead
from hornbook.model.incremental import CastLinear, for_generation, is_incremental, with_parameters
from hornbook.model.layers import LayerNorm, NoNorm, RMSNorm, is_unmodified
from hornbook.ops.layers import for_few_rows
from hornbook.ops.native.choice import form_for_tokens
from hornbook.ops.native.token_block import (
    Rotation,
    TokenBlock,
    TokenHead,
    TokenLinear,
    TokenModel,
    TokenNorm,
    TokenOptions,
    TokenParts,
    TokenValues,
)

_FORWARD = ("forward", "make_context")
"""Methods of `LanguageModel` that read all tokens of a window if a subclass overrides them."""


class Cache:
    """Keys and values of all layers; its tensors keep their addresses from the first token to the last.

    Args:
        lengths: number of initial tokens of each row, whose columns are still to be written.
        capacity: number of columns.
        dtype: dtype of keys and values.
        device: device of keys and values.

    Attributes:
        starts: the column of each row's first token.
        first: the first column that any row uses.
        end: the column after the last.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.tensors: dict[nn.Module, Tensor] = {}
        """``[B, 2, H, capacity, K]`` of each module that attends, in their order."""
        self.capacity, self.end = capacity, max(lengths)
        self._most_rows, self._dtype = len(lengths), dtype
        self.starts = [self.end - length for length in lengths]
        self._columns_C = torch.arange(capacity, device=device)
        self.in_use: dict[nn.Module, Tensor] = {}
        """The rows of these tensors that are left."""
        self._arrange()

    def append(self, restarts: Mapping[int, int]) -> None:
        """Add a column for the next token of each row.

        Args:
            restarts: rows that restart, and the number of tokens they then have, including the new one.
        """
        for row, length in restarts.items():
            self.starts[row] = self.end + 1 - length
        is_full = self.end == self.capacity
        if is_full:
            distance = min(self.starts)
            assert distance > 0, "a full cache with more columns than positions has an unused first column"
            for tensor in self.in_use.values():
                tensor[:, :, :, : self.end - distance] = tensor[:, :, :, distance : self.end].clone()
            self.end -= distance
            self.starts = [start - distance for start in self.starts]
        self.end += 1
        if restarts or is_full:
            self._arrange()
        else:
            self.positions_B1 += 1

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; they move to the front."""
        for owner, tensor in self.tensors.items():
            tensor[: len(rows)] = tensor[list(rows)]
            self.in_use[owner] = tensor[: len(rows)]
        self.starts = [self.starts[row] for row in rows]
        self._arrange()

    def mask(self) -> Tensor | None:
        """Return the additive mask ``[B, 1, 1, S]``, 0 or -inf, for queries in the last column; None if all 0."""
        if self._mask_B11C is None:
            return None
        return self._mask_B11C.narrow(3, self.first, self.end - self.first)

    def of(self, owner: nn.Module, num_heads: int, head_size: int) -> Tensor:
        """Return the ``[B, 2, H, capacity, K]`` of a module, at first zeros."""
        if owner not in self.tensors:
            shape = (self._most_rows, 2, num_heads, self.capacity, head_size)
            with torch.inference_mode(False):  # it is changed outside of the forward pass, too
                self.tensors[owner] = torch.zeros(shape, dtype=self._dtype, device=self._columns_C.device)
            self.in_use[owner] = self.tensors[owner][: len(self.starts)]
        return self.in_use[owner]

    def _arrange(self) -> None:
        """Update the tensors that depend on the starts."""
        device, dtype = self._columns_C.device, self._dtype
        starts_B1 = torch.tensor(self.starts, device=device).unsqueeze(1)
        self.positions_B1 = self.end - 1 - starts_B1
        """The position of the token in the last column of each row, int64."""
        self.first = min(self.starts)
        self._mask_B11C = None
        if max(self.starts) > self.first:
            hidden_BC = self._columns_C < starts_B1
            mask_BC = torch.zeros(hidden_BC.shape, dtype=dtype, device=device).masked_fill_(hidden_BC, -math.inf)
            self._mask_B11C = mask_BC[:, None, None]


@dataclass(frozen=True)
class Columns:
    """What a forward pass of new tokens sees of a cache, a `hornbook.model.attention.KeyValues`."""

    cache: Cache
    first: int
    """Number of the first column."""
    mask: Tensor | None = None
    """See ``KeyValues``."""
    row: int | None = None
    """The only row; None: all rows."""

    def of(self, owner: nn.Module, num_heads: int, head_size: int) -> Tensor:
        """Return the keys and values of a module, ``[B, 2, H, S, K]``."""
        tensor = self.cache.of(owner, num_heads, head_size)
        if self.row is not None:
            tensor = tensor[self.row : self.row + 1]
        return tensor.narrow(3, self.first, self.cache.end - self.first)

    def of_all(self) -> list[Tensor]:
        """Return the keys and values in all rows of each module that has attended, in their order."""
        length = self.cache.end - self.first
        return [tensor.narrow(3, self.first, length) for tensor in self.cache.in_use.values()]


class IncrementalModel:
    """A language model whose blocks all find earlier tokens in a key-value cache.

    On a CPU, the cache is fp32 whatever the activations' dtype: attention with one query is memory traffic and
    conversions there, and takes five times as long in bf16.

    Args:
        model: its weights are read now; do not train it meanwhile.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.device, dtype = model.device, model.compute_dtype
        self.cache_dtype = torch.float32 if self.device.type == "cpu" else dtype
        self.max_positions = model.max_positions
        self._model = for_generation(model, dtype)
        table = model.head(lambda head, *_: head.table, None, {})[: model.vocab_size].detach().to(dtype)
        form = form_for_tokens(torch.empty(0, dtype=dtype, device=self.device))
        own, head = self._model.head, None
        if form is not None and is_unmodified(own, CausalHead) and (norm := _token_norm(own.norm)) is not None:
            head = TokenHead(norm, table.contiguous(), own.cap)
        self._logits = None if form is None or head is None else TokenModel(form, [], head)
        if head is None:
            twin = with_parameters(own, {"table": for_few_rows(table)})  # which no hook replaces
            twin._forward_pre_hooks, twin._forward_hooks = type(own._forward_pre_hooks)(), type(own._forward_hooks)()
            vars(self._model)["head"] = self._model._modules["head"] = twin
        blocks = [_token_block(block) for block in self._model.blocks]
        known = [block for block in blocks if block is not None]
        self._attentions: list[Any] = [getattr(block, "attention", None) for block in self._model.blocks]
        self._shifts: list[Any] = [getattr(attention, "key_shift", None) for attention in self._attentions]
        self._smear: Any = getattr(self._model.blocks[0], "smear", None)
        self._token = None if form is None or len(known) < len(blocks) else TokenModel(form, known, head)

    @torch.inference_mode()
    def logits(self, tokens_BT: Tensor, positions_BT: Tensor, cache: Columns) -> Tensor:
        """Return the logits ``[B, V]``, fp32, of the tokens after the last column.

        Args:
            tokens_BT: int64, new tokens.
            positions_BT: int64, their positions.
            cache: written in the columns of the new tokens.
        """
        if self._token is not None and tokens_BT.shape[1] == 1:
            x_BTD = self._model.embedding(tokens_BT, positions_BT, tokens_BT)  # no dropout, so no keys
            context = self._model.make_context({"tokens": tokens_BT, "positions": positions_BT, "keys": tokens_BT})
            angles: dict[Any, Rotation] = {
                key: (context[key][0][:, 0], context[key][1][:, 0]) for key in self._model.rotations
            }
            rotations = [angles.get(getattr(attention, "rotation", None)) for attention in self._attentions]
            start_BD = x_BTD[:, 0]
            if self._smear is not None:
                x_BTD = self._smear(x_BTD, {**context, "cache": cache})
            caches = [cache.of(each, each.num_kv_heads, each.head_size) for each in self._attentions]
            moved = [
                None if shift is None else shift.stored(cache, each.num_kv_heads)
                for each, shift in zip(self._attentions, self._shifts, strict=True)
            ]
            y_BD = self._token(x_BTD[:, 0], caches, cache.mask, rotations, tokens_BT[:, 0], start_BD, moved)
            return y_BD if self._token.head is not None else self._model.head.logits(y_BD)
        batch = {"tokens": tokens_BT, "positions": positions_BT, "keys": tokens_BT}
        logits = self._logits
        y_BV: Tensor = self._model(
            lambda head, x_BTD, _: (head.logits if logits is None else logits)(x_BTD[:, -1]), batch, cache
        )
        return y_BV


def _token_block(block: nn.Module) -> TokenBlock | None:
    """Return a block, whose weights are cast, for native operators; None if they do not support one of its parts."""
    has_shortcuts = is_unmodified(block, ShortcutBlock)
    if not (has_shortcuts or is_unmodified(block, PreNormBlock)):
        return None
    attention: Any = block.attention
    feed_forward: Any = block.feed_forward
    is_decoder = is_unmodified(attention, DecoderAttention)
    embedding = getattr(attention, "value_embedding", None)
    if embedding is not None and not is_unmodified(embedding, ValueEmbedding):
        return None
    shift = getattr(attention, "key_shift", None)
    if shift is not None and not is_unmodified(shift, KeyShift):
        return None
    if not (is_decoder or is_unmodified(attention, CausalSelfAttention)) or not is_unmodified(
        feed_forward, FeedForward
    ):
        return None
    qkv = [attention.qkv] if hasattr(attention, "qkv") else [attention.query, attention.key_value]
    up = feed_forward.gate_up if feed_forward.is_gated else feed_forward.up
    modules: list[Any] = [*qkv, attention.out, up, feed_forward.down]
    if not all(isinstance(linear, CastLinear) for linear in modules):
        return None
    *qkv_layers, out, first, second = (TokenLinear(linear.weight, linear.bias) for linear in modules)
    modules = [block.attention_norm, block.feed_forward_norm]
    modules += [getattr(attention, name, NoNorm()) for name in ("query_norm", "key_norm")]
    modules += [block.attention_output_norm, block.feed_forward_output_norm]
    before, between, query, key, after, last = norms = [*map(_token_norm, modules)]
    if any(norm is None and type(of) is not NoNorm for norm, of in zip(norms, modules, strict=True)):
        return None
    options: dict[str, Any] = {}
    if is_decoder:
        options = {"window": attention.window, "cap": attention.cap, "norms_all_heads": attention.norm_kind == "width"}
        options["scale"] = attention.scale * attention.head_size**-0.5
    values, scales = None, None
    if embedding is not None:
        values = TokenValues(*(tensor.detach().float().contiguous() for tensor in (embedding.table, embedding.gate)))
    if has_shortcuts and block.state_scale is not None:
        of_both: list[Any] = [block.state_scale, block.embedding_scale]
        scales = torch.cat(of_both).detach().float()
    sizes = (attention.num_heads, attention.head_size, feed_forward.activation, attention.num_kv_heads)
    return TokenBlock(
        TokenParts(before, tuple(qkv_layers), out, between, first, second, query, key, after, last, values, scales),
        TokenOptions(*sizes, feed_forward.is_gated, **options),
    )


def _token_norm(norm: Any) -> TokenNorm | None:
    """Return a norm for native operators; None if it is none, or another one."""
    if is_unmodified(norm, LayerNorm):
        return TokenNorm(norm.weight.detach(), norm.bias.detach(), norm.epsilon)
    if is_unmodified(norm, RMSNorm):
        return TokenNorm(None if norm.weight is None else norm.weight.detach(), None, norm.epsilon, is_rms=True)
    return None


def incremental_model(model: LanguageModel) -> IncrementalModel | str:
    """Return a model for generation with a cache, or the name of the part that does not promise to use one.

    Args:
        model: in evaluation mode. A model with its own ``forward``, or with a block that is not incremental, must
            recompute the whole window for every token.
    """
    if any(getattr(type(model), name) is not getattr(LanguageModel, name) for name in _FORWARD):
        return type(model).__name__
    for number, block in enumerate(model.blocks):
        if not is_incremental(block):
            return f"blocks.{number}, {type(block).__name__},"
    return IncrementalModel(model)
