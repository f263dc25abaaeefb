"""Models as plain ``nn.Module``s, built from a section of the recipe.

``x_BTD`` is a tensor of shape [batch, tokens, hidden]. The suffixes, used throughout:

    B batch: rows     T tokens of a row      D hidden     V vocabulary
    H heads           K head size            E = 3·H·K, query, key and value side by side
    N = B·T flattened tokens                 Z = B·H flattened heads
    S sequences; in attention, keys          Q queries
    P tokens to predict                      G, t sequences of a group and their tokens
    R rows of rearranged tokens (of all groups, or of a column with empty rows), M rows gathered from them
    C other counts of a module: tokens of a chunk, channels, classes
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch

from hornbook.config import (
    BertConfig,
    DecoderConfig,
    FactorizedGPTConfig,
    GPTConfig,
    GroupBertConfig,
    ModernBertConfig,
    Recipe,
    RobertaConfig,
)
from hornbook.config.description import description_of
from hornbook.errors import UserError
from hornbook.model.decoder import build_decoder
from hornbook.model.encoder import EncoderModel, ModernBert, build_bert, build_groupbert
from hornbook.model.factorized import build_factorized_gpt
from hornbook.model.initialize import initialize
from hornbook.model.language_model import LanguageModel, build_gpt
from hornbook.model.sparse_layers import sparsify
from hornbook.model.sparse_table import sparsify_table

__all__ = ["EncoderModel", "LanguageModel", "build_model", "initialize", "model_of"]


MODELS: dict[type, Callable[[Any, torch.dtype], LanguageModel]] = {
    GPTConfig: build_gpt,
    DecoderConfig: build_decoder,
    FactorizedGPTConfig: build_factorized_gpt,
    BertConfig: build_bert,
    RobertaConfig: build_bert,
    GroupBertConfig: build_groupbert,
    ModernBertConfig: ModernBert,
}
"""The builder of each config dataclass."""


@singledispatch
def build_model(config: object, compute_dtype: torch.dtype) -> LanguageModel:
    """Return the model that a recipe's ``[model]`` section describes, with uninitialized parameters.

    Args:
        config: a section dataclass; its type chooses the builder (``build_model.register`` adds one).
        compute_dtype: dtype of the activations, independent of that of the parameters.

    Raises:
        UserError: nothing is registered for this dataclass.
    """
    name = type(config).__name__
    raise UserError(f"there is no model for {name}: register a function for it with build_model.register")


for _config, _builder in MODELS.items():
    build_model.register(_config, _builder)


def model_of(recipe: Recipe, compute_dtype: torch.dtype) -> LanguageModel:
    """Return the model of a recipe's ``[model]`` and ``[sparsity]`` sections, with uninitialized parameters.

    Call it in the context of the meta device if the recipe is sparse. Arguments and errors as for ``build_model``.
    """
    model = build_model(recipe.model, compute_dtype)
    model.description = description_of(recipe.model)
    there = {name: model.logical_shape(name, parameter) for name, parameter in model.own_parameters()}
    described = there if model.description is None else dict(model.description.shapes())
    if described != there:
        name = next(name for name in (*there, *described) if there.get(name) != described.get(name))
        here, said = (list(found[name]) if name in found else "absent" for found in (there, described))
        raise UserError(
            f"{name} is {here} in the model and {said} in the description of {type(recipe.model).__name__}: override "
            "description"
        )
    if recipe.sparsity.linears:
        sparsify(model, recipe.sparsity, recipe.model)
    if recipe.sparsity.embedding_block_size is not None:
        sparsify_table(model, recipe.sparsity)
    return model
