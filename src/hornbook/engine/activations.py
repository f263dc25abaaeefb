"""Activation memory: recomputation in the backward pass and offloading to host memory.

::

    recompute = "all"          x -> [block] -> y                       keeps x; the backward pass runs the block again
    recompute = "attention"    qkv -> [softmax(q kᵀ) v] -> out         keeps qkv and the result, not the weights between

Recomputing blocks follows Chen et al. 2016, recomputing attention only Korthikanti et al. 2022. The second forward pass
yields the same bits as the first, since dropout is a hash without random state. The functions wrap layers from outside:
names, parameters and checkpoints do not change, and forward passes without gradients are unaffected.

With a budget, the first layers keep their activations as long as they fit. The activations of a layer are measured
whenever a micro-batch has a new shape; the measured layer keeps them, which needs no more memory than recomputing a
layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from hornbook.config import MemoryConfig
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.attention import SelfAttention
from hornbook.parallel.ranks import local

Compute = Callable[..., Tensor]
_MIB = 1 << 20


def recompute_layers(model: LanguageModel, config: MemoryConfig) -> None:
    """Make the layers of ``model`` that ``config`` selects recompute activations in the backward pass, in place.

    Raises:
        UserError: only attention is to be recomputed, and a layer does not use hornbook's self-attention.
    """
    budget = None if config.recompute_budget is None else Budget(round(config.recompute_budget * _MIB))
    for number, block in enumerate(model.blocks):
        if config.recompute_layers and number not in config.recompute_layers:
            continue
        owner, name = (block, "forward") if config.recompute == "all" else (_attention_of(block, number), "mix")
        compute = getattr(owner, name)
        setattr(owner, name, recomputed(compute) if budget is None else budget.limited(compute))


def recomputed(compute: Compute) -> Compute:
    """Return ``compute``, a function of tensors and other arguments, such that it keeps only its arguments.

    The second pass runs outside of a block's hooks, so it gets the context variables of the first pass.
    """

    def run(*given: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return compute(*given)
        within = partial(copy_context().run, compute)
        result: Tensor = checkpoint(within, *given, use_reentrant=False, preserve_rng_state=False)
        return result

    run.is_incremental = True  # type: ignore[attr-defined]  # without gradients, it computes what ``compute`` does
    return run


class Budget:
    """The limit, in bytes, of the activations that a rank's layers keep for one micro-batch, first layers first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._layers: list[Compute] = []
        """Layers in the order of their first call; those of other pipeline ranks are never called."""
        self._measured: dict[tuple[torch.Size, torch.dtype], int] = {}
        """Bytes that a layer keeps, by shape and dtype of its input."""

    def limited(self, compute: Compute) -> Compute:
        """Return the layer ``compute`` such that it keeps its activations if they fit and recomputes them otherwise."""
        again = recomputed(compute)
        owner = getattr(compute, "__self__", None)

        def run(x: Tensor, *given: Any) -> Tensor:
            if not torch.is_grad_enabled():
                return compute(x, *given)
            if compute not in self._layers:
                self._layers.append(compute)
            key = (x.shape, x.dtype)
            if key not in self._measured:
                weights = owner.parameters() if isinstance(owner, nn.Module) else ()
                with counted_bytes(x, *map(local, weights)) as sizes:
                    result = compute(x, *given)
                self._measured[key] = sum(sizes.values())
                return result
            fits = (self._layers.index(compute) + 1) * self._measured[key] <= self._limit
            return compute(x, *given) if fits else again(x, *given)

        run.is_incremental = True  # type: ignore[attr-defined]
        return run


@contextmanager
def counted_bytes(*given: Tensor) -> Iterator[dict[int, int]]:
    """Count the bytes that operations in the ``with`` block keep for the backward pass, by address of their memory.

    Parameters do not count, nor does the memory of ``given``, which exists anyway: a layer's input, and its weights,
    of which views or detached copies may be kept.
    """
    sizes: dict[int, int] = {}
    outside = {tensor.untyped_storage().data_ptr() for tensor in given}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() not in outside:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


def _attention_of(block: nn.Module, number: int) -> nn.Module:
    for module in block.modules():
        if isinstance(module, SelfAttention):
            return module
    raise UserError(
        f'memory.recompute = "attention": layer {number} does not use hornbook\'s self-attention; set it to "all"'
    )
