"""GPT: a token sees itself and what came before.

::

    batch {tokens, positions, keys, documents?}
      -> tokens + positions -> pre-norm blocks, causal attention -> norm, tied table
"""

import torch
from torch import nn

from hornbook.config import GPTConfig
from hornbook.model.block import PreNormBlock
from hornbook.model.embedding import Embedding
from hornbook.model.head import CausalHead
from hornbook.model.language_model import LanguageModel


def build_gpt(config: GPTConfig, compute_dtype: torch.dtype) -> LanguageModel:
    """Return a GPT-2 or GPT-3 (Radford et al. 2019, Brown et al. 2020) whose parameters are not yet initialized."""
    assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
    embedding = Embedding(
        config.vocab_size,
        config.max_positions,
        config.hidden_size,
        dropout=config.embedding_dropout,
        std=config.initializer_std,
        compute_dtype=compute_dtype,
    )
    blocks: list[nn.Module] = [PreNormBlock(config, index) for index in range(config.num_layers)]
    head = CausalHead(config.hidden_size, config.vocab_size, epsilon=config.layer_norm_epsilon)
    return LanguageModel(embedding, blocks, head, max_positions=config.max_positions)
