"""Slots, the inputs of an update for one parameter each; roles of parameters, norms and clipping.

    "blocks.0.attention.qkv.weight" [3, H·K, D]  -> matrix, 3 parts      decayed; LAMB scales each part separately
    "blocks.0.attention.qkv.bias"   [3, H·K]     -> bias, 3 parts        not decayed, no trust ratio in LAMB
    "embedding.positions"           [P, D]       -> matrix               tables are decayed, as in torch and GPT-2
    "head.norm.bias"                [D]          -> bias                 as in optimum-graphcore
    "head.norm.weight"              [D]          -> norm                 not decayed, with a trust ratio

Roles depend on names: in a custom model, a parameter whose name ends with ``bias`` is a bias, and other vectors are
norms. `hornbook.optim.updates.in_groups` changes decay and learning rate by patterns of names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.config.optimizers import ClipScope, Role
from hornbook.ops.block_pattern import Pattern
from hornbook.ops.native.kernels import Copy
from hornbook.parallel.device import copied_to
from hornbook.parallel.ranks import Ranks
from hornbook.parallel.whole_tensors import Parts


class Holders(NamedTuple):
    """The ranks over which a model's parameters are split, and the number of copies of this rank's part."""

    ranks: Ranks
    num_copies: int


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter, or this rank's part of it, with gradient, optimizer state and options of its update.

    Parameter and gradient have the same shape; a bias is a vector. States have that shape, too, except that some of
    their dimensions may be 1.
    """

    name: str
    """Name of the parameter in its model, such as ``blocks.0.attention.out.weight`` or ``embedding.tokens``."""
    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    role: Role = "matrix"
    num_parts: int = 1
    """Number of separate parameters stacked along the first dimension: 3 for query, key and value."""
    head_size: int | None = None
    """Rows of an attention head, if the optimizer updates each head separately."""
    is_exempt: bool = False
    """Whether the optimizer's ``no_decay`` exempts it from weight decay, independent of its role."""
    rate_scale: float = 1.0
    """Factor of the learning rate."""
    clip: float = 1.0
    """Factor by which the update multiplies the gradient; 1 if ``Update.clips`` is false."""
    grown_at: Tensor | None = None
    """Integers ``[..., n]`` for blocks ``[..., n, b, b]``: the update after which each grew, 0 for initial ones."""
    pattern: Pattern | None = None
    """Positions of blocks ``[..., n, b, b]`` in the matrix that they are of, whose parts are stacked vertically."""
    holders: Holders | None = None
    """Holders of its parts; None if the parameter is not split. Either all slots of a model have holders or none."""
    copy: Copy | None = None
    """A copy that the update may write, with what it has changed."""
    parts: Parts | None = None
    """Parts of the model's parameters by rank, for updates that need whole tensors; None for a single rank."""

    @property
    def decay(self) -> bool:
        """Whether weight decay applies."""
        return self.role == "matrix" and not self.is_exempt

    @property
    def matrix_size(self) -> tuple[int, int]:
        """Rows and columns of each matrix of a parameter that has two dimensions or more: of a head, a part, or all."""
        if self.pattern is not None:
            size, num_parts = self.parameter.shape[-1], self.parameter.shape[:-3].numel()
            rows, columns = self.pattern.num_rows * size // num_parts, self.pattern.num_columns * size
        else:
            rows, columns = (self.parameter.shape if self.parts is None else self.parts.shape_of(self.name))[-2:]
        return self.head_size or rows, columns


def by_group(slots: Sequence[Slot]) -> Iterator[tuple[bool, float, list[Slot]]]:
    """Yield groups of slots with the same options: whether weight decay applies, factor of the learning rate, slots."""
    groups = sorted({(slot.decay, slot.rate_scale) for slot in slots}, reverse=True)
    for decay, scale in groups:
        yield decay, scale, [slot for slot in slots if (slot.decay, slot.rate_scale) == (decay, scale)]


_NUM_PARTS = {"qkv": 3, "key_value": 2, "gate_up": 2}


def num_parts_of(name: str) -> int:
    """Return the number of separate parameters stacked in the parameter ``name``."""
    return _NUM_PARTS.get(name.rpartition(".")[0].rpartition(".")[2], 1)


def norms_of(tensors: Sequence[Tensor], holders: Sequence[Holders | None] = ()) -> Tensor:
    """Return the L2 norm of each fp32 tensor, ``[len(tensors)]``, without synchronizing with the device.

    If ``holders`` are given, tensors are parts, and the norms are those of the whole tensors, the same on all ranks.

    On a CPU, PyTorch sums all squares of a tensor in a few fp32 accumulators, which lose precision for large tensors:
    the norm of BERT-base's token table would be 1.3e-3 too small. So the function computes the norm of the norms of
    the rows, at the same speed.
    """
    rows = [
        torch.linalg.vector_norm(tensor, dim=-1) if tensor.dim() > 1 and tensor.device.type == "cpu" else tensor
        for tensor in tensors
    ]
    norms = torch.stack(torch._foreach_norm(rows))
    split = [holder for holder in holders if holder is not None]
    if not split:
        return norms
    copies = torch.tensor([holder.num_copies for holder in split], dtype=torch.float64)
    squares = norms.double().square() / copied_to(norms.device, copies)
    return split[0].ranks.sum_tensor(squares).sqrt().float()


def clip(
    slots: Sequence[Slot], norm: float, limit: float | None, scope: ClipScope, *, by_update: bool = False
) -> Sequence[Slot]:
    """Clip gradients to the norm ``limit`` in place, or return slots whose ``clip`` makes the update do so.

    Args:
        slots: of one part of the model; may be empty.
        norm: global L2 norm, over all parts.
        limit: None disables clipping.
        scope: ``"global"`` limits the global norm (Pascanu et al. 2013), ``"per_tensor"`` the norm of each gradient,
            which changes the direction of the update.
        by_update: whether the update applies ``Slot.clip``.
    """
    if limit is None or not slots:  # pipeline ranks have no slots of some parts
        return slots
    if scope == "per_tensor":
        gradients = [slot.gradient for slot in slots]
        norms = norms_of(gradients, [slot.holders for slot in slots])
        scales = (limit / norms).clamp(max=1.0)  # a norm of 0 gives an infinite quotient and a scale of 1
        torch._foreach_mul_(gradients, list(scales.unbind()))
    elif norm > limit:
        if by_update:
            return [replace(slot, clip=limit / norm) for slot in slots]
        torch._foreach_mul_([slot.gradient for slot in slots], limit / norm)
    return slots
