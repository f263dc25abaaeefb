"""Models as plain ``nn.Module``s, built from a section of the recipe.

Shape suffixes, used throughout: B batch, T tokens, D hidden, H heads, K head size, F feed-forward, V vocabulary,
N = B·T flattened tokens, C a chunk of them. ``x_BTD`` is a tensor of shape [batch, tokens, hidden].
"""

from functools import singledispatch

import torch

from hornbook.config import GPTConfig
from hornbook.model.gpt import LanguageModel, build_gpt
from hornbook.model.initialize import initialize

__all__ = ["LanguageModel", "build_model", "initialize"]


@singledispatch
def build_model(config: object, compute_dtype: torch.dtype) -> LanguageModel:
    """Return the model that a recipe's ``[model]`` section describes, parameters not yet initialized.

    Args:
        config: a section dataclass; its type chooses the builder (``build_model.register`` adds one).
        compute_dtype: dtype of the activations; parameters are fp32.
    """
    raise TypeError(f"no builder is registered for {type(config).__name__}")


build_model.register(GPTConfig)(build_gpt)
