"""What generation needs of modules: a promise that new tokens suffice, and weights that are cast once.

Generation runs the modules of training. Attention finds the keys and values of earlier tokens in its context, so a
model reads only new tokens::

    training     block(x_BTD, {keys, positions})          all tokens of a window
    generation   block(x_BTD, {keys, positions, cache})   new tokens; `hornbook.model.attention.attend` uses the cache

A module that mixes tokens only through the cache, or not at all, says so by ``is_incremental = True``. The promise is
that of the class that computes: a subclass that overrides ``forward`` or ``mix`` has to repeat it.
"""

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.ops.layers import for_few_rows

_Module = TypeVar("_Module", bound=nn.Module)
_COMPUTING = ("forward", "mix")


def is_incremental(module: nn.Module) -> bool:
    """Return whether ``module`` computes new tokens from these alone and from the cache in its context."""
    return _decides(module, "is_incremental") and bool(getattr(module, "is_incremental", False))


def for_generation(module: _Module, dtype: torch.dtype, made: dict[int, nn.Module] | None = None) -> _Module:
    """Return a module that computes the same, with weights cast once; modules and tensors are shared where possible.

    Args:
        module: left as it is; a class may define ``for_generation(dtype)``, which returns another module for itself.
        dtype: of the activations.
        made: results for other modules of the same model, by ``id``.
    """
    made = {} if made is None else made
    if id(module) not in made:
        own = getattr(module, "for_generation", None) if _decides(module, "for_generation") else None
        twin = made[id(module)] = copy.copy(module) if own is None else own(dtype)
        twin._modules = {
            name: child if child is None else for_generation(child, dtype, made)
            for name, child in twin._modules.items()
        }
        vars(twin).update(twin._modules | twin._parameters)  # found at once, without ``nn.Module.__getattr__``
    result: _Module = made[id(module)]  # type: ignore[assignment]
    return result


def with_parameters(module: _Module, parameters: Mapping[str, Tensor]) -> _Module:
    """Return a copy of ``module`` with other parameters; everything else is shared."""
    twin = copy.copy(module)
    changed = {name: nn.Parameter(tensor.detach(), requires_grad=False) for name, tensor in parameters.items()}
    twin._parameters = {**module._parameters, **changed}
    vars(twin).update(changed)
    return twin


class CastLinear(nn.Module):
    """A linear layer with weights cast once; in fp32 they are those of the layer that it replaces.

    Args:
        weight: ``[num_out, num_in]``.
        bias: ``[num_out]`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, num_in]`` to ``[B, T, num_out]``."""
        return functional.linear(x, self._weight_for_one_token if x.shape[1] == 1 else self.weight, self.bias)

    __call__ = forward  # nobody hooks it; a third of the time of a call for one token

    @cached_property
    def _weight_for_one_token(self) -> Tensor:
        """A copy in fp32; where native operators compute single tokens, nobody asks for it."""
        return for_few_rows(self.weight)


def _decides(module: nn.Module, name: str) -> bool:
    """Return whether the attribute ``name`` belongs to the class that computes, or to a subclass of it.

    A function that replaces a method of an object may have the attribute itself (`hornbook.engine.activations`).
    """
    own = {key: value for key, value in vars(module).items() if not hasattr(value, "is_incremental")}
    definitions = [own, *map(vars, type(module).__mro__)]
    depth, *of_computing = (
        next((number for number, names in enumerate(definitions) if each in names), len(definitions))
        for each in (name, *_COMPUTING)
    )
    return depth <= min(of_computing)
