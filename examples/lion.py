"""Lion: each weight moves by the learning rate, in the direction of the sign of an interpolated momentum.

python lion.py train lion.toml --data.train corpora/mine

After Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hornbook import extend


@dataclass(frozen=True, kw_only=True)
class LionConfig(extend.OptimizerConfig):
    """The options of every optimizer, and Lion's."""

    name: str = "lion"
    learning_rate: float = 3e-4
    weight_decay: float = 1.0
    beta1: float = extend.option(0.9, help="weight of the momentum in the direction", minimum=0, below=1)
    beta2: float = extend.option(0.99, help="decay rate of the momentum", minimum=0, below=1)

    def states(self, name: str, shape: tuple[int, ...]) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each state tensor of a parameter."""
        return {"momentum": shape}


def lion(slots: Sequence[extend.Slot], config: LionConfig, learning_rate: float) -> None:
    """Update all parameters in place."""
    for slot in slots:
        rate, momentum = learning_rate * slot.rate_scale, slot.state["momentum"]
        direction = momentum.lerp(slot.gradient, 1 - config.beta1).sign_()
        if slot.decay:
            slot.parameter.mul_(1 - rate * config.weight_decay)
        slot.parameter.sub_(direction, alpha=rate)
        momentum.lerp_(slot.gradient, 1 - config.beta2)


@extend.build_update.register
def build_lion(config: LionConfig) -> extend.Update:
    """Return the update."""
    return extend.Update(
        states=config.states, apply=lambda slots, learning_rate, count: lion(slots, config, learning_rate)
    )


extend.register("optimizer", "lion", LionConfig)
if __name__ == "__main__":
    raise SystemExit(extend.main())
