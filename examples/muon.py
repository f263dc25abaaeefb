"""Muon: orthogonalized momentum for the matrices of the blocks, AdamW for tables, norms and biases.

python muon.py train muon.toml --data.train corpora/mine

After Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hornbook import extend


@dataclass(frozen=True, kw_only=True)
class MuonConfig(extend.AdamWConfig):
    """The options of AdamW, and those of Muon."""

    name: str = "muon"
    learning_rate: float = 0.02
    adamw_learning_rate: float = extend.option(
        3e-3, help="peak learning rate of tables, norms and biases; follows the same schedule", above=0
    )
    momentum: float = extend.option(0.95, help="decay rate of the momentum", minimum=0, below=1)
    newton_schulz_steps: int = extend.option(5, help="iterations of the orthogonalization", minimum=1)

    def states(self, name: str, shape: tuple[int, ...]) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of a parameter's state tensors: one for a matrix of a block, AdamW's two for any other."""
        return {"momentum": shape} if is_hidden(name, shape) else super().states(name, shape)


def is_hidden(name: str, shape: Sequence[int]) -> bool:
    """Return whether Muon updates a parameter: a matrix of a block."""
    return name.startswith("blocks.") and extend.role_of(name, shape) == "matrix"


def orthogonalize(matrix: Tensor, num_steps: int) -> Tensor:
    """Return nearly U Vᵀ of ``matrix`` = U S Vᵀ: singular values come out between 0.68 and 1.13, by Newton-Schulz.

    Each step maps every singular value s to 3.4445 s - 4.7750 s³ + 2.0315 s⁵ and needs products of matrices alone.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = (matrix.T if is_tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(num_steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if is_tall else x


def muon(slots: Sequence[extend.Slot], config: MuonConfig, learning_rate: float, count: int) -> None:
    """Update all parameters in place; stacked query, key and value are three matrices."""
    others = [slot for slot in slots if not is_hidden(slot.name, slot.parameter.shape)]
    scale = config.adamw_learning_rate / config.learning_rate
    extend.adamw(others, config, learning_rate=scale * learning_rate, count=count)
    for slot in slots:
        if not is_hidden(slot.name, slot.parameter.shape):
            continue
        rate = learning_rate * slot.rate_scale
        momentum = slot.state["momentum"].lerp_(slot.gradient, 1 - config.momentum)
        ahead = slot.gradient.lerp(momentum, config.momentum)  # Nesterov's
        if slot.decay:
            slot.parameter.mul_(1 - rate * config.weight_decay)
        for weight, direction in zip(slot.cut(slot.parameter), slot.cut(ahead), strict=True):
            matrix = orthogonalize(direction.flatten(0, -2), config.newton_schulz_steps)
            factor = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            weight.sub_(matrix.view_as(weight), alpha=rate * factor)


@extend.build_update.register
def build_muon(config: MuonConfig) -> extend.Update:
    """Return the update."""
    return extend.Update(
        states=config.states,
        apply=lambda slots, learning_rate, count: muon(slots, config, learning_rate, count),
    )


extend.register("optimizer", "muon", MuonConfig)
if __name__ == "__main__":
    raise SystemExit(extend.main())
