"""What an update is given of one parameter, and what kind of parameter its name says it is.

    "blocks.0.attention.qkv_weight" [3, H·K, D]  -> matrix, 3 parts      decayed; LAMB takes the parts one by one
    "blocks.0.attention.qkv_bias"   [3·H·K]      -> bias, 3 parts        not decayed, LAMB has no trust ratio
    "embedding.positions"           [P, D]       -> matrix               tables are decayed, as torch and GPT-2 do
    "head.norm.bias"                [D]          -> bias                 optimum-graphcore counts a norm's bias so, too
    "head.norm.weight"              [D]          -> norm                 not decayed, with a trust ratio

Names decide, so a parameter of one's own model that is called ``bias`` is one, and other vectors count as norms. The
price: a matrix that should not decay has no way to say so.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Role = Literal["matrix", "norm", "bias"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter with what its update needs; all tensors have the parameter's shape."""

    name: str
    """Of the parameter in its model, as in ``blocks.0.attention.out.weight``."""
    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    role: Role = "matrix"
    num_parts: int = 1
    """Equal parts along the first dimension that are parameters of their own: 3 for stacked query, key and value."""

    @property
    def decay(self) -> bool:
        """Whether weight decay applies."""
        return self.role == "matrix"

    def cut(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return views of the parts of ``tensor``, which has the parameter's shape."""
        return tensor.chunk(self.num_parts)


def role_of(name: str, parameter: Tensor) -> Role:
    """Tell from its name and shape what a parameter is."""
    if name.endswith("bias"):
        return "bias"
    return "matrix" if parameter.dim() > 1 else "norm"


def num_parts_of(name: str) -> int:
    """Tell from its name how many parameters of equal shape are stacked in a parameter."""
    return 3 if name.rpartition(".")[2].startswith("qkv_") else 1
