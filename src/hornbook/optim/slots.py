"""Slots, the input of an update for one parameter each: what kind of parameter it is, norms and clipping.

    "blocks.0.attention.qkv.weight" [3, H·K, D]  -> matrix, 3 parts      decayed; LAMB scales each part by itself
    "blocks.0.attention.qkv.bias"   [3, H·K]     -> bias, 3 parts        not decayed, LAMB has no trust ratio
    "embedding.positions"           [P, D]       -> matrix               tables are decayed, as torch and GPT-2 do
    "head.norm.bias"                [D]          -> bias                 optimum-graphcore counts a norm's bias so, too
    "head.norm.weight"              [D]          -> norm                 not decayed, with a trust ratio

Names decide, so a parameter of one's own model that is called ``bias`` is one, and other vectors count as norms.
`hornbook.optim.updates.in_groups` changes decay and learning rate by patterns of names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hornbook.config.optimizers import ClipScope
from hornbook.parallel.ranks import Ranks

Role = Literal["matrix", "norm", "bias"]


class Holders(NamedTuple):
    """The ranks over which the parameters of a model are cut, and how many of them hold the same part of this one."""

    ranks: Ranks
    num_copies: int


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter, or the part of it that this rank holds, with all that its update needs.

    All tensors have the parameter's shape, a bias is a vector.
    """

    name: str
    """Of the parameter in its model, such as ``blocks.0.attention.out.weight`` or ``embedding.tokens``."""
    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    role: Role = "matrix"
    num_parts: int = 1
    """Equal parts along the first dimension that are parameters of their own: 3 for stacked query, key and value."""
    is_exempt: bool = False
    """Whether the optimizer's ``no_decay`` exempts it from weight decay, whatever its role."""
    rate_scale: float = 1.0
    """Factor of the learning rate."""
    clip: float = 1.0
    """Factor of the gradient that is left to the update; 1 where it has ``Update.clips`` false."""
    grown_at: Tensor | None = None
    """Of blocks ``[..., n, b, b]``, integers ``[..., n]``: the update after which each began, 0 from the start on."""
    holders: Holders | None = None
    """Of its parts; None where the parameter is whole. All slots of a model have some, or none has."""

    @property
    def decay(self) -> bool:
        """Whether weight decay applies."""
        return self.role == "matrix" and not self.is_exempt

    def cut(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return views of the parts of ``tensor``, which has the parameter's shape."""
        return tensor.chunk(self.num_parts)


def by_group(slots: Sequence[Slot]) -> Iterator[tuple[bool, float, list[Slot]]]:
    """Yield slots whose update is the same: whether weight decay applies, factor of the learning rate, slots."""
    groups = sorted({(slot.decay, slot.rate_scale) for slot in slots}, reverse=True)
    for decay, scale in groups:
        yield decay, scale, [slot for slot in slots if (slot.decay, slot.rate_scale) == (decay, scale)]


def role_of(name: str, parameter: Tensor) -> Role:
    """Return what a parameter is, by its name and shape."""
    if name.endswith("bias"):
        return "bias"
    return "matrix" if parameter.dim() > 1 else "norm"


def num_parts_of(name: str) -> int:
    """Return how many parameters of equal shape are stacked in a parameter, by its name."""
    return 3 if ".qkv." in f".{name}" else 1


def norms_of(tensors: Sequence[Tensor], holders: Sequence[Holders | None] = ()) -> Tensor:
    """Return the L2 norm of each fp32 tensor, ``[len(tensors)]``, without waiting for the device.

    Where tensors are parts, as ``holders`` says, it is the norm of the whole, the same on all of its ranks.

    A CPU adds up all squares of a tensor in a few fp32 numbers, which stop growing long before the end of a large one:
    the norm of BERT-base's token table comes out 1.3e-3 too small. So there it is the norm of the norms of the rows,
    at the same speed.
    """
    rows = [
        torch.linalg.vector_norm(tensor, dim=-1) if tensor.dim() > 1 and tensor.device.type == "cpu" else tensor
        for tensor in tensors
    ]
    norms = torch.stack(torch._foreach_norm(rows))
    cut = [holder for holder in holders if holder is not None]
    if not cut:
        return norms
    squares = norms.double().square() / norms.new_tensor([holder.num_copies for holder in cut], dtype=torch.float64)
    return cut[0].ranks.sum_tensor(squares).sqrt().float()


def clip(
    slots: Sequence[Slot], norm: float, limit: float | None, scope: ClipScope, *, by_update: bool = False
) -> Sequence[Slot]:
    """Scale gradients so that no norm is above ``limit``, in place, or return slots whose update does.

    Args:
        slots: of one part of the model; may be empty.
        norm: global L2 norm, of all parts together.
        limit: None clips nothing.
        scope: ``"global"`` limits the global norm (Pascanu et al. 2013), ``"per_tensor"`` the norm of each gradient, so
            that their common direction changes.
        by_update: whether the update applies ``Slot.clip``.
    """
    if limit is None or not slots:  # a rank of a pipeline holds nothing of some parts
        return slots
    if scope == "per_tensor":
        gradients = [slot.gradient for slot in slots]
        norms = norms_of(gradients, [slot.holders for slot in slots])
        scales = (limit / norms).clamp(max=1.0)  # norm 0: an infinite quotient, a scale of 1
        torch._foreach_mul_(gradients, list(scales.unbind()))
    elif norm > limit:
        if by_update:
            return [replace(slot, clip=limit / norm) for slot in slots]
        torch._foreach_mul_([slot.gradient for slot in slots], limit / norm)
    return slots
