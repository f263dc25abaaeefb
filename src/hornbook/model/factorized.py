"""A decoder with a factorized token embedding; `hornbook.config.factorized` has a diagram.

The head shares the embedding's table ``[V, E]``, which gets the gradients of both look-ups and logits.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.config.factorized import FactorizedGPTConfig
from hornbook.model.attention import BlockedCausalSelfAttention, CausalSelfAttention
from hornbook.model.block import MakeNorm, PreNormBlock
from hornbook.model.head import CausalHead
from hornbook.model.language_model import LanguageModel
from hornbook.model.layers import Embedding, GroupNorm, LayerNorm, Linear
from hornbook.ops.layers import ACTIVATIONS, sinusoidal
from hornbook.samples.batches import Batch


class FactorizedEmbedding(Embedding):
    """``projection(norm(dropout(norm(tokens) + norm(positions))))``; the tables have E columns, the result has D.

    Args:
        config: sizes and options of the model.
        compute_dtype: dtype of the output.
        make_norm: factory of the norms.
    """

    def __init__(self, config: FactorizedGPTConfig, compute_dtype: torch.dtype, make_norm: MakeNorm) -> None:
        assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
        super().__init__(
            config.vocab_size,
            config.max_positions,
            config.embedding_size,
            positions=config.positions,
            dropout=config.embedding_dropout,
            std=config.initializer_std,
            compute_dtype=compute_dtype,
        )
        self.hidden_size, self.clamps_tokens = config.hidden_size, config.clamp_tokens
        self.token_norm, self.position_norm = make_norm(config.embedding_size), make_norm(config.embedding_size)
        self.sum_norm = make_norm(config.embedding_size)
        self.projection = Linear(config.embedding_size, config.hidden_size, std=config.initializer_std)

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor, keys_BT: Tensor, segments_BT: Tensor | None = None
    ) -> Tensor:
        """Return ``[B, T, D]`` in the compute dtype; see ``Embedding``."""
        if self.clamps_tokens:
            tokens_BT = tokens_BT.clamp(max=self.vocab_size - 1)
        if self.sparse_tokens is not None:
            tokens_BTE = self.sparse_tokens.look_up(tokens_BT)
        else:
            tokens_BTE = functional.embedding(tokens_BT, self.tokens.float())
        if self.positions is None:
            positions_BTE = sinusoidal(positions_BT, tokens_BTE.shape[-1])
        else:
            positions_BTE = functional.embedding(positions_BT, self.positions.float())
        x_BTE = self.token_norm(tokens_BTE.to(self.compute_dtype)) + self.position_norm(
            positions_BTE.to(self.compute_dtype)
        )
        x_BTD: Tensor = self.projection(self.sum_norm(self.dropout(x_BTE, keys_BT)))
        return x_BTD


class FactorizedHead(CausalHead):
    """``norm(activation(projection(norm(x))))``, multiplied by the embedding's table.

    Args:
        config: sizes and options of the model.
        make_norm: factory of the norms.
    """

    def __init__(self, config: FactorizedGPTConfig, make_norm: MakeNorm) -> None:
        assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
        super().__init__(config.embedding_size, config.vocab_size, norm=make_norm(config.hidden_size))
        self.clamps_tokens, self.activation = config.clamp_tokens, ACTIVATIONS[config.activation]
        self.projection = Linear(config.hidden_size, config.embedding_size, std=config.initializer_std)
        self.projection_norm = make_norm(config.embedding_size)

    def forward(self, use: Callable[[Any, Tensor, Batch], Any], x_BTD: Tensor, batch: Batch) -> Any:
        """Return ``use(self, x_BTD, batch)``, with targets clamped to the vocabulary if the recipe says so."""
        if self.clamps_tokens and "targets" in batch:
            batch = {**batch, "targets": batch["targets"].clamp(max=self.vocab_size - 1)}
        return use(self, x_BTD, batch)

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the output projection ``[..., E]`` for hidden states ``[..., D]``."""
        prepared: Tensor = self.projection_norm(self.activation(self.projection(self.norm(x))))
        return prepared


def build_factorized_gpt(config: FactorizedGPTConfig, compute_dtype: torch.dtype) -> LanguageModel:
    """Return the decoder with uninitialized parameters."""
    attention: Callable[..., CausalSelfAttention] = CausalSelfAttention
    if config.attention_block_size is not None:
        attention = partial(BlockedCausalSelfAttention, block_size=config.attention_block_size)
    make_norm = partial(_norm, config)
    blocks = [
        PreNormBlock(
            config,
            index,
            make_norm=make_norm,
            attention=attention,
            qkv_bias=config.qkv_bias,
            out_bias=config.projection_bias,
            activation_dropout=config.activation_dropout,
        )
        for index in range(config.num_layers)
    ]
    embedding = FactorizedEmbedding(config, compute_dtype, make_norm)
    model = LanguageModel(embedding, blocks, FactorizedHead(config, make_norm), max_positions=config.max_positions)
    if config.clamp_tokens:
        model.num_ids = sys.maxsize
    if config.initializer == "glorot_uniform":
        _use_glorot(model, config.embedding_size)
    return model


def _use_glorot(model: LanguageModel, embedding_size: int) -> None:
    """Set linear layers to Glorot uniform initialization (Glorot and Bengio 2010, equation 16), stacked ones as one.

    The rows of the token table get a mean squared norm of 1 (variance scaling by the outputs).
    """
    model.embedding.std = 1.0 / math.sqrt(embedding_size)
    for module in model.modules():
        if isinstance(module, Linear):
            module.std, module.is_uniform = math.sqrt(2.0 / (module.in_features + module.out_features)), True


def _norm(config: FactorizedGPTConfig, size: int) -> LayerNorm:
    options: dict[str, Any] = {"epsilon": config.layer_norm_epsilon, "gain": config.norm_gain}
    return LayerNorm(size, **options) if config.norm_groups == 1 else GroupNorm(size, config.norm_groups, **options)
