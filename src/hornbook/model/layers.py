"""The layers of all models: embedding, linear layer, layer norm and dropout; `hornbook.ops.layers` has the operators.

Parameters are fp32 unless ``precision.weights`` says otherwise. The embedding casts activations to the compute dtype,
and every layer casts its weights to the dtype of its input::

    x bf16  ->  Linear(weight fp32)  ->  y bf16,   weight.grad fp32

The cast moves 6 bytes per parameter and micro-batch. In return, no second copy of the weights is kept, and gradients
are summed in fp32. On a GPU, copies are kept for a step (`hornbook.ops.mixed_linear`), and AdamW writes the next ones.
"""

from typing import Any, Literal, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.shapes import padded_rows
from hornbook.model.incremental import CastLinear, with_parameters
from hornbook.model.initialize import Draw
from hornbook.ops.layers import (
    ACTIVATIONS,
    activated_linear,
    add_norm_of,
    affine_dtype,
    dropout_add,
    linear,
    norm_beside,
    sinusoidal,
)
from hornbook.ops.tensor_parallel import cut_rows
from hornbook.ops.triton.embedding_operators import embed
from hornbook.ops.triton.operators import chosen
from hornbook.ops.triton.programs import Drop
from hornbook.parallel.ranks import is_cut

_Kind = TypeVar("_Kind", bound=nn.Module)
Positions = Literal["learned", "sinusoidal", "none"]
_METHODS = ("forward", "mix", "split")
"""What a module computes by, besides its hooks."""


class MakeLinear(Protocol):
    """A factory of the linear layers of a block: ``Linear``, or a class or function of your own."""

    def __call__(self, num_in: int, num_out: int, *, std: float, bias: bool = True) -> nn.Module:
        """Return a module that maps each token from ``[..., num_in]`` to ``[..., num_out]``; see ``Linear``."""
        ...


class LookUp(Protocol):
    """A token table that is not a single tensor."""

    def look_up(self, tokens: Tensor) -> Tensor:
        """Return the rows of ``tokens``, int64 ``[...]``, in fp32 ``[..., D]``."""
        ...


class Linear(nn.Linear):
    """A linear layer, ``y = x Wᵀ + b``, in the dtype of ``x``.

    Args:
        num_in: size of the last dimension of the input.
        num_out: size of the last dimension of the output.
        std: standard deviation of the initial weights; biases are initialized to zero.
        bias: whether to add ``b``.

    Attributes:
        is_uniform: whether initial weights are uniform, within ±√3 std, rather than normal.
    """

    is_uniform = False

    def __init__(self, num_in: int, num_out: int, *, std: float, bias: bool = True) -> None:
        super().__init__(num_in, num_out, bias=bias)
        self.std = std

    def reset_parameters(self) -> None:
        """Do nothing: ``draw`` initializes the parameters from the run's seed."""

    def draw(self, draw: Draw) -> None:
        draw.normal(self.weight, "weight", self.std, is_uniform=self.is_uniform)
        draw.constant(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        return linear(x, self.weight, self.bias)

    def for_generation(self, dtype: torch.dtype) -> nn.Module:
        """Return the layer with weights cast once to ``dtype``."""
        bias = None if self.bias is None else self.bias.flatten().to(dtype)
        return CastLinear(self.weight.flatten(0, -2).to(dtype), bias)


class StackedLinear(Linear):
    """Several linear layers of equal shape as one product, ``[..., D]`` to their concatenated outputs.

    One product is faster, but tensor parallelism, optimizers, import and sparsity need them separately: ``weight[0]``
    is the first one's. The biases are stacked like the weights, so that both are split along the second dimension.

    Args:
        num_in: D.
        num_out: outputs of each layer.
        num_parts: number of layers.
        std: see ``Linear``.
        bias: whether to add biases.
    """

    def __init__(self, num_in: int, num_out: int, num_parts: int, *, std: float, bias: bool = True) -> None:
        super().__init__(num_in, num_parts * num_out, std=std, bias=bias)
        self.weight = nn.Parameter(torch.empty(num_parts, num_out, num_in))
        if bias:
            self.bias = nn.Parameter(torch.empty(num_parts, num_out))


def activated(up: nn.Module, x: Tensor, activation: str) -> Tensor:
    """Return ``f(up(x))`` with f from ``ACTIVATIONS``; fused if ``up`` is an unmodified ``Linear``."""
    if is_unmodified(up, Linear):
        return activated_linear(x, up.weight, up.bias, activation)
    return ACTIVATIONS[activation](up(x))


def is_unmodified(module: Any, kind: type[_Kind]) -> TypeGuard[_Kind]:
    """Return whether ``module`` computes what its class ``kind`` does: no subclass, no hooks, no replaced methods."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return type(module) is kind and not any(hooks) and not any(name in vars(module) for name in _METHODS)


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) over the last dimension, in the dtype of its input, statistics in fp32.

    Args:
        size: of the last dimension.
        epsilon: added to the variance.
        gain: initial value of the weight; the bias is initialized to zero.
        has_bias: whether the bias is a parameter; otherwise, it stays zero.
    """

    bias: Tensor

    def __init__(self, size: int, *, epsilon: float, gain: float = 1.0, has_bias: bool = True) -> None:
        super().__init__()
        self.epsilon, self.gain = epsilon, gain
        self.weight = nn.Parameter(torch.empty(size))
        if has_bias:
            self.bias = nn.Parameter(torch.empty(size))
        else:
            self.register_buffer("bias", torch.empty(size), persistent=False)

    def draw(self, draw: Draw) -> None:
        draw.constant(self.weight, self.gain)
        draw.constant(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]`` to zero mean and unit variance, then scale and shift."""
        return self.beside(x)[1]

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x`` and ``norm(x)``, for ``x + f(norm(x))``; native operators add both gradients in one pass."""
        return norm_beside(x, self.weight, self.bias, self.epsilon)

    def for_generation(self, dtype: torch.dtype) -> nn.Module:
        """Return the norm with weight and bias cast once."""
        dtype = affine_dtype(dtype, self.weight.device)
        return with_parameters(self, {"weight": self.weight.to(dtype), "bias": self.bias.to(dtype)})


class RMSNorm(nn.Module):
    """RMS norm (Zhang and Sennrich 2019) over the last dimension, in the dtype of its input, computed in fp32.

    Args:
        size: of the last dimension.
        epsilon: added to the mean square.
        has_gain: whether to multiply by a gain, initialized to 1.
    """

    def __init__(self, size: int, *, epsilon: float, has_gain: bool = True) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(size)) if has_gain else None

    def draw(self, draw: Draw) -> None:
        """Initialize the gain."""
        draw.constant(self.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]`` to a mean square of 1, then scale."""
        return self.beside(x)[1]

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x`` and ``norm(x)``, for ``x + f(norm(x))``."""
        return norm_beside(x, self.weight, None, self.epsilon, is_rms=True)


class NoNorm(nn.Identity):
    """The absence of a norm."""

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x`` twice."""
        return x, x

    __call__ = nn.Identity.forward


class GroupNorm(LayerNorm):
    """Group normalization (Wu and He 2018) of each token, over groups of columns.

    Args:
        size: of the last dimension.
        num_groups: divides ``size``.
        epsilon: added to the variance.
        gain: see ``LayerNorm``.
    """

    def __init__(self, size: int, num_groups: int, *, epsilon: float, gain: float = 1.0) -> None:
        super().__init__(size, epsilon=epsilon, gain=gain)
        self.num_groups = num_groups

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each group of ``[..., size]``, then scale and shift."""
        affine = (self.weight.to(x.dtype), self.bias.to(x.dtype))
        flat = functional.group_norm(x.reshape(-1, x.shape[-1]), self.num_groups, *affine, self.epsilon)
        return flat.view_as(x)

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x`` and ``norm(x)``, for ``x + f(norm(x))``."""
        return x, self(x)


class Dropout(nn.Module):
    """Dropout by a hash of (key, site, column) (`hornbook.ops.dropout`), in training mode only.

    Args:
        probability: share of elements to drop; 0 makes the layer the identity.
        site: number of this dropout, unique in the model.
    """

    def __init__(self, probability: float, *, site: int) -> None:
        super().__init__()
        self.probability = probability
        self.site = site

    @property
    def drops(self) -> bool:
        """Whether a forward pass would drop elements."""
        return self.training and self.probability > 0.0

    def forward(self, x: Tensor, keys: Tensor, residual: Tensor | None = None) -> Tensor:
        """Drop elements of ``x`` ``[..., C]``, then add ``residual`` if given; ``keys`` is int64 ``[...]``."""
        if self.drops:
            return dropout_add(x, keys, self.site, self.probability, residual)
        return x if residual is None else residual + x

    def for_generation(self, dtype: torch.dtype) -> nn.Module:
        """Return a layer that only adds the residual."""
        return NoDropout()


def add_norm(dropout: Any, norm: Any, x: Tensor, keys: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``dropout(x, keys, residual)`` and its norm, in one pass where both are unmodified layers on a GPU.

    Tensors are ``[..., D]``, but for the dropout keys, ``[...]`` int64.
    """
    fused: tuple[Tensor, Tensor] | None = None
    if x.is_cuda and is_unmodified(dropout, Dropout):
        drop = (keys, dropout.site, dropout.probability) if dropout.drops else None
        if is_unmodified(norm, LayerNorm):
            fused = add_norm_of(x, residual, drop, norm.weight, norm.bias, norm.epsilon, centered=True)
        elif is_unmodified(norm, RMSNorm):
            fused = add_norm_of(x, residual, drop, norm.weight, None, norm.epsilon, centered=False)
    return fused or norm.beside(dropout(x, keys, residual))


class NoDropout(nn.Module):
    """A dropout that drops nothing, for generation."""

    drops = False

    def forward(self, x: Tensor, keys: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return ``x``, plus ``residual`` if given."""
        return x if residual is None else residual + x

    __call__ = forward


class Embedding(nn.Module):
    """The sum of token, position and segment embeddings, then an optional norm, then dropout.

    GPT has learned positions and no norm (Radford et al. 2018), BERT also segments and a norm (Devlin et al. 2019).

    Args:
        vocab_size: size of the vocabulary; the table in memory is padded with zero rows, which are never saved.
        max_positions: maximum sequence length.
        hidden_size: D.
        positions: a learned table, fixed sines and cosines (Vaswani et al. 2017), or none.
        first_position: row of the position table for position 0: 2 in RoBERTa, whose tables have 2 more rows.
        num_segments: rows of the segment table; 0: no table, 1: one row, added to every token.
        norm: of the sum, before the dropout.
        scale: factor of the sum, rounded to the compute dtype.
        dropout: probability.
        std: standard deviation of the initial tables.
        compute_dtype: dtype of the output and of all later activations.

    Attributes:
        sparse_tokens: replaces ``tokens`` if the token table is block-sparse (`hornbook.model.sparse_table`).
        twins: the table of a tied head, ``tokens`` with its own gradient, if it is there.
    """

    def __init__(
        self,
        vocab_size: int,
        max_positions: int,
        hidden_size: int,
        *,
        positions: Positions = "learned",
        first_position: int = 0,
        num_segments: int = 0,
        norm: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float,
        std: float,
        compute_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size, self.std, self.compute_dtype = vocab_size, hidden_size, std, compute_dtype
        self.position_kind, self.first_position, self.num_segments = positions, first_position, num_segments
        self.tokens = nn.Parameter(torch.empty(padded_rows(vocab_size), hidden_size))
        num_rows = max_positions + first_position
        self.positions = nn.Parameter(torch.empty(num_rows, hidden_size)) if positions == "learned" else None
        self.segments = nn.Parameter(torch.empty(num_segments, hidden_size)) if num_segments else None
        self.norm, self.scale = norm, scale
        self.dropout = Dropout(dropout, site=0)
        self.sparse_tokens: LookUp | None = None
        self.twins: tuple[Tensor, ...] = ()

    def draw(self, draw: Draw) -> None:
        """Initialize the tables; the padding rows of the token table become zero."""
        if self.sparse_tokens is None:
            draw.normal(self.tokens, "tokens", self.std, num_rows=self.vocab_size)
        for name, table in (("positions", self.positions), ("segments", self.segments)):
            if table is not None:
                draw.normal(table, name, self.std)

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor, keys_BT: Tensor, segments_BT: Tensor | None = None
    ) -> Tensor:
        """Return ``[B, T, D]`` in the compute dtype.

        16-bit tables are looked up in fp32, so that the gradients of a row are summed in fp32.

        Args:
            tokens_BT: int64.
            positions_BT: int64, from 0.
            keys_BT: int64, the dropout keys.
            segments_BT: int64; None: all tokens are in segment 0.
        """
        tokens = self.tokens
        if tokens is not None and tokens.is_cuda and self._is_fused:
            drop = Drop(keys_BT, self.dropout.site, self.dropout.probability) if self.dropout.drops else None
            ids = tokens_BT, positions_BT + self.first_position if self.first_position else positions_BT
            return embed(*ids, tokens, self.positions, self.twins, drop, self.compute_dtype)
        if self.sparse_tokens is not None:
            x_BTD = self.sparse_tokens.look_up(tokens_BT)
        else:
            x_BTD = cut_rows(tokens_BT, tokens) if is_cut(tokens) else functional.embedding(tokens_BT, tokens.float())
        if self.positions is not None:
            x_BTD = x_BTD + functional.embedding(positions_BT + self.first_position, self.positions.float())
        elif self.position_kind == "sinusoidal":
            x_BTD = x_BTD + sinusoidal(positions_BT, x_BTD.shape[-1])
        if self.segments is not None:
            if segments_BT is None or len(self.segments) == 1:
                x_BTD = x_BTD + self.segments[0].float()
            else:
                x_BTD = x_BTD + functional.embedding(segments_BT, self.segments.float())
        x_BTD = x_BTD.to(self.compute_dtype)
        if self.scale != 1.0:
            x_BTD = x_BTD * torch.tensor(self.scale, dtype=x_BTD.dtype)
        result: Tensor = self.dropout(x_BTD if self.norm is None else self.norm(x_BTD), keys_BT)
        return result

    @property
    def _is_fused(self) -> bool:
        """Whether Triton computes the result and the gradients, given that the table is on a GPU."""
        tables = [table for table in (self.tokens, self.positions) if table is not None]
        is_plain = self.norm is None and self.segments is None and self.scale == 1.0 and not is_cut(self.tokens)
        is_plain &= self.position_kind != "sinusoidal" and all(table.dtype == torch.float32 for table in tables)
        return is_plain and is_unmodified(self.dropout, Dropout) and chosen("triton_embedding", self.tokens)

    def for_generation(self, dtype: torch.dtype) -> nn.Module:
        """Return the embedding with tables converted to fp32 once."""
        tables = {name: table.float() for name, table in self.named_parameters(recurse=False)}
        return with_parameters(self, tables)
