"""The input of an update for one parameter, and the kind of parameter that its name says it is.

    "blocks.0.attention.qkv.weight" [3, H·K, D]  -> matrix, 3 parts      decayed; LAMB scales each part by itself
    "blocks.0.attention.qkv.bias"   [3, H·K]     -> bias, 3 parts        not decayed, LAMB has no trust ratio
    "embedding.positions"           [P, D]       -> matrix               tables are decayed, as torch and GPT-2 do
    "head.norm.bias"                [D]          -> bias                 optimum-graphcore counts a norm's bias so, too
    "head.norm.weight"              [D]          -> norm                 not decayed, with a trust ratio

Names decide, so a parameter of one's own model that is called ``bias`` is one, and other vectors count as norms.
`hornbook.optim.groups` changes decay and learning rate by patterns of names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Role = Literal["matrix", "norm", "bias"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter with all that its update needs; all tensors have the parameter's shape, a bias is a vector."""

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


def as_vector(name: str, tensor: Tensor) -> Tensor:
    """Return a view of a bias as a vector, and other tensors as they are.

    Args:
        name: of a parameter.
        tensor: of the parameter's shape, contiguous; a stacked bias is ``[3, H·K]``.
    """
    return tensor.view(-1) if role_of(name, tensor) == "bias" else tensor


def role_of(name: str, parameter: Tensor) -> Role:
    """Return what a parameter is, by its name and shape."""
    if name.endswith("bias"):
        return "bias"
    return "matrix" if parameter.dim() > 1 else "norm"


def num_parts_of(name: str) -> int:
    """Return how many parameters of equal shape are stacked in a parameter, by its name."""
    return 3 if ".qkv." in f".{name}" else 1
