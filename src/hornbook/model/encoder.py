"""Encoders: BERT, RoBERTa and GroupBERT.

::

    batch {tokens, positions, segments, keys, firsts, lengths}
      -> tokens + positions + segments, norm -> blocks -> (norm) -> head.predict, head.relate

A micro-batch has S sequences: one per row with padding (padded), several per row (packed), or all in one row
(unpadded). The model treats all three alike: sequence s is the ``lengths[s]`` flat tokens from ``firsts[s]`` on.
Layers that map each token separately ignore the layout; those that mix tokens rearrange the batch by index maps, which
are computed once per micro-batch (`hornbook.ops.sequence_groups`).
"""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from hornbook.config import BertConfig, EncoderConfig, GroupBertConfig, ModernBertConfig, RobertaConfig
from hornbook.model.attention import Context, EncoderSelfAttention
from hornbook.model.block import FeedForward, PostNormBlock, PreNormBlock
from hornbook.model.group_block import GroupBlock
from hornbook.model.head import EncoderHead, OutputHead, Transform
from hornbook.model.label_heads import FirstTokenClassifier, SpanHead, TransformClassifier
from hornbook.model.language_model import LanguageModel
from hornbook.model.layers import Embedding, LayerNorm, NoNorm
from hornbook.model.rotary import plain_rotary
from hornbook.ops.native.kernels import form_of
from hornbook.ops.sequence_groups import group_sequences, space_sequences
from hornbook.ops.spans import spans_of_sequences
from hornbook.samples.batches import Batch


class EncoderModel(LanguageModel):
    """An encoder with its heads.

    Args:
        embedding: called with (tokens, positions, keys, segments), each ``[B, T]``.
        blocks: each called with (x ``[B, T, D]``, context).
        head: tied to the embedding's table.
        max_positions: maximum sequence length.
    """

    is_causal = False

    def make_context(self, batch: Batch) -> Context:
        """Return ``keys``, ``firsts``, ``lengths``, and ``spans`` or index maps with ``group_keys``.

        Native attention needs neither of these; they are left out if no block or attention of a user may.
        """
        tokens_BT, keys_BT = batch["tokens"], batch["keys"]
        firsts_S, lengths_S, device = batch["firsts"], batch["lengths"], tokens_BT.device
        rotations = {name: rotary(batch["positions"]) for name, rotary in self.rotations.items()}
        context = cast(Context, {"keys": keys_BT, "firsts": firsts_S, "lengths": lengths_S, **rotations})
        if self.takes_spans(device):
            context["spans"] = spans_of_sequences(firsts_S, lengths_S, tokens_BT.numel(), device)
            return context
        is_own = all(type(block) in _BLOCKS and type(block.attention) in _ATTENTIONS for block in self.blocks)
        if is_own and form_of("attention", torch.empty(0, dtype=self.compute_dtype, device=device)) is not None:
            return context
        groups = group_sequences(firsts_S, lengths_S, tokens_BT.shape, device)
        context = cast(Context, {**context, **groups})
        if "gather_index" in groups:
            context["group_keys"] = keys_BT.flatten()[groups["gather_index"].clamp(min=0)]
        return context


class GroupBert(EncoderModel):
    """GroupBERT (Chelombiev et al. 2021): blocks with a convolution, and a norm in the head.

    Args:
        config: sizes and options of the model.
        compute_dtype: dtype of the activations.
    """

    initial_cut = 2.0

    def __init__(self, config: GroupBertConfig, compute_dtype: torch.dtype) -> None:
        blocks = [GroupBlock(config, index) for index in range(config.num_layers)]
        head = build_head(config, norm=LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon))
        super().__init__(_embedding(config, compute_dtype), blocks, head, max_positions=config.max_positions)
        self.reach = config.convolution_kernel // 2

    def make_context(self, batch: Batch) -> Context:
        """Return the base class's entries and the index maps of ``space_sequences``, for the convolutions."""
        firsts, lengths, tokens_BT = batch["firsts"], batch["lengths"], batch["tokens"]
        spaced = space_sequences(firsts, lengths, tokens_BT.numel(), self.reach, tokens_BT.device)
        return cast(Context, {**super().make_context(batch), **spaced})


def build_bert(config: BertConfig | RobertaConfig, compute_dtype: torch.dtype) -> EncoderModel:
    """Return a BERT or RoBERTa (Devlin et al. 2019, Liu et al. 2019) with uninitialized parameters."""
    blocks = [PostNormBlock(config, index) for index in range(config.num_layers)]
    embedding = _embedding(config, compute_dtype)
    return EncoderModel(embedding, blocks, build_head(config), max_positions=config.max_positions)


def build_groupbert(config: GroupBertConfig, compute_dtype: torch.dtype) -> EncoderModel:
    """Return a GroupBERT with uninitialized parameters."""
    return GroupBert(config, compute_dtype)


def _embedding(config: EncoderConfig, compute_dtype: torch.dtype) -> Embedding:
    assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
    return Embedding(
        config.vocab_size,
        config.max_positions,
        config.hidden_size,
        num_segments=config.num_segments,
        first_position=config.first_position,
        norm=LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon),
        dropout=config.embedding_dropout,
        std=config.initializer_std,
        compute_dtype=compute_dtype,
    )


def build_head(config: EncoderConfig, norm: LayerNorm | None = None) -> OutputHead:
    """Return the head of an encoder, not yet tied, with uninitialized parameters."""
    assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
    size, std, is_modern = config.hidden_size, config.initializer_std, isinstance(config, ModernBertConfig)
    transform = Transform(
        size, activation=config.head_activation, epsilon=config.layer_norm_epsilon, std=std, bias=not is_modern
    )
    if config.head == "span":
        return SpanHead(size, config.vocab_size, std=std, norm=norm, transform=transform if is_modern else None)
    if config.head == "classification":
        assert config.num_labels is not None, "the run counts the classes before it builds the model"
        dropout = config.residual_dropout
        if isinstance(config, ModernBertConfig):
            return TransformClassifier(
                size,
                config.vocab_size,
                num_labels=config.num_labels,
                transform=transform,
                takes_mean=config.classifier_pooling == "mean",
                dropout=dropout,
                std=std,
                norm=norm,
            )
        return FirstTokenClassifier(
            size, config.vocab_size, num_labels=config.num_labels, dropout=dropout, std=std, norm=norm
        )
    return EncoderHead(
        size,
        config.vocab_size,
        transform=transform if config.head_transform else None,
        bias=config.prediction_bias,
        relates=config.has_pair_head,
        std=std,
        norm=norm,
    )


class RotaryEncoderAttention(EncoderSelfAttention):
    """Self-attention within sequences with rotated queries and keys.

    Args:
        sizes: see ``SelfAttention``.
        reach: how many tokens on either side each one attends to; None: all of the sequence.
        options: see ``SelfAttention``.
    """

    def __init__(self, *sizes: int, reach: int | None, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.reach = reach

    def angles(self, context: Context) -> tuple[Tensor, ...]:
        """Return the angles of global or local layers; see ``EncoderSelfAttention``."""
        rotation = context["rotation" if self.reach is None else "local_rotation"]
        return tuple(part.flatten(0, 1) for part in rotation)


class ModernBert(EncoderModel):
    """ModernBERT (Warner et al. 2024): BERT's sequences and head, a decoder's rotations and gated feed-forwards.

    ::

        tokens, norm -> block 0 (no norm before its attention) .. block L-1 -> norm -> dense, activation, norm -> table
        layers 0, 3, 6, ...   attend to the whole sequence, theta 160,000
        the others            attend to 64 tokens on either side, theta 10,000

    Args:
        config: sizes and options of the model.
        compute_dtype: dtype of the activations.
    """

    initial_cut = 2.0

    def __init__(self, config: ModernBertConfig, compute_dtype: torch.dtype) -> None:
        assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
        make_norm = partial(LayerNorm, epsilon=config.layer_norm_epsilon, has_bias=False)
        embedding = Embedding(
            config.vocab_size,
            config.max_positions,
            config.hidden_size,
            positions="none",
            norm=make_norm(config.hidden_size),
            dropout=config.embedding_dropout,
            std=config.initializer_std,
            compute_dtype=compute_dtype,
        )
        blocks = [
            PreNormBlock(
                config,
                index,
                make_norm=make_norm,
                attention=partial(
                    RotaryEncoderAttention, reach=None if config.is_global(index) else config.local_window // 2
                ),
                qkv_bias=config.qkv_bias,
                out_bias=config.projection_bias,
                feed_forward=partial(FeedForward, bias=False, is_gated=True),
            )
            for index in range(config.num_layers)
        ]
        blocks[0].attention_norm = NoNorm()
        head = build_head(config, norm=make_norm(config.hidden_size))
        super().__init__(embedding, blocks, head, max_positions=config.max_positions)
        size = config.effective_head_size
        self.rotations["rotation"] = plain_rotary(config.global_rope_theta, size)
        self.rotations["local_rotation"] = plain_rotary(config.local_rope_theta, size)


_BLOCKS = (PreNormBlock, PostNormBlock, GroupBlock)
_ATTENTIONS = (EncoderSelfAttention, RotaryEncoderAttention)
