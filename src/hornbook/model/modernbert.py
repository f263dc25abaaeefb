"""ModernBERT (Warner et al. 2024): BERT's sequences and head, a decoder's rotations and gated feed-forwards.

::

    tokens, norm -> block 0 (no norm before its attention) .. block L-1 -> norm -> dense, activation, norm -> tied table
    layers 0, 3, 6, ...   attend to the whole sequence, theta 160,000
    the others            attend to 64 tokens on either side, theta 10,000
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hornbook.config import ModernBertConfig
from hornbook.model.attention import Context, EncoderSelfAttention
from hornbook.model.block import FeedForward, PreNormBlock
from hornbook.model.encoder import EncoderModel, build_head
from hornbook.model.layers import Embedding, LayerNorm, NoNorm
from hornbook.model.rotary import plain_rotary


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
    """A ModernBERT with uninitialized parameters.

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
