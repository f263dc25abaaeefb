"""Incremental forms of modules, with which generation computes only the new tokens.

A module that supports this has a method ``incremental(dtype)``, which returns a function of tensors with weights cast
once to the dtype of the activations; those of attentions and blocks also take a cache of keys and values. For one token
of a small model, module calls and casts take longer than the products: without them, generation is two to four times
as fast. A block composes its form from those of its parts::

    PreNormBlock.incremental -> LayerNorm.incremental, CausalSelfAttention.incremental, FeedForward.incremental
                                                       -> QueryKeyValue, Linear           -> Linear

A form inherited by a subclass that overrides ``forward`` is ignored, since the subclass computes something else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.ops.layers import for_few_rows


class IncrementalBlock(Protocol):
    """A block, or an attention, for new tokens and a cache."""

    cache_shape: tuple[int, int]
    """(H, K): number and size of the key and value heads; the cache has 2·H·K numbers per token."""

    def __call__(self, x_BTD: Tensor, cache_B2HSK: Tensor, mask: Tensor | None, positions_BT: Tensor) -> Tensor:
        """Return the hidden states of the new tokens.

        Args:
            x_BTD: the T new tokens.
            cache_B2HSK: keys and values of S tokens; the call writes the last T columns, those of the new tokens.
            mask: ``[B, 1, T, S]``, bool (True: may attend) or added to the scores. None if all tokens are new (T = S)
                or only one (T = 1).
            positions_BT: int64, the positions of the new tokens in their windows.
        """
        ...


@dataclass(frozen=True)
class CastLinear:
    """A linear layer with weights cast once; in fp32 they are the module's own."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[B, T, num_in]`` to ``[B, T, num_out]``."""
        return functional.linear(x, self._weight_for_one_token if x.shape[1] == 1 else self.weight, self.bias)

    @cached_property
    def _weight_for_one_token(self) -> Tensor:
        """A copy in fp32; where native operators compute single tokens, nobody asks for it."""
        return for_few_rows(self.weight)


def incremental_form(module: nn.Module, dtype: torch.dtype, *, computed_by: tuple[str, ...] = ("forward",)) -> Any:
    """Return ``module.incremental(dtype)``, or None if the module has no incremental form of what it computes.

    Args:
        module: in evaluation mode; its weights are read now.
        dtype: of the activations.
        computed_by: methods that the form replaces. A class that overrides one of them, or an object with an attribute
            of that name, must also define ``incremental``.
    """
    definitions = [vars(module), *map(vars, type(module).__mro__)]
    depth = {
        name: next((number for number, names in enumerate(definitions) if name in names), len(definitions))
        for name in ("incremental", *computed_by)
    }
    if depth["incremental"] > min(depth[name] for name in computed_by):
        return None
    return module.incremental(dtype)  # type: ignore[operator]


def token_form(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return the incremental form of a module that maps each token separately, or the module itself if it has none."""
    return incremental_form(module, dtype) or module
