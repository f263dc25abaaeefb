"""The update rules as their formulas are written, tensor by tensor, in float64: what the fused ones have to equal."""

import torch

from hornbook.config import AdamConfig, AdamWConfig, LambConfig, MomentumConfig, SGDConfig
from hornbook.optim.slots import Role, Slot

SHAPES: list[tuple[tuple[int, ...], Role, int]] = [
    ((3, 6, 5), "matrix", 3),
    ((18,), "bias", 3),
    ((7,), "norm", 1),
    ((7,), "bias", 1),
    ((1,), "norm", 1),
    ((2, 3, 4), "matrix", 1),
    ((33, 17), "matrix", 1),
]
"""Of each kind of parameter one: shape, role, parts."""
DEFAULT = AdamWConfig()


def make_slots(states=DEFAULT.states) -> list[Slot]:
    """Fresh slots; the parts of the stacked one differ in size by powers of ten, so that ratios do, too."""
    draws = torch.Generator().manual_seed(0)
    slots = [
        Slot(
            name="bias" if role == "bias" else "weight",
            parameter=torch.randn(shape, generator=draws),
            gradient=torch.randn(shape, generator=draws),
            state={key: torch.zeros(own) for key, own in states(role, shape).items()},
            role=role,
            num_parts=num_parts,
        )
        for shape, role, num_parts in SHAPES
    ]
    for index in range(3):
        slots[0].parameter[index] *= 10.0 ** (index - 1)
    return slots


def give_gradients(slots: list[Slot], step: int) -> None:
    """Draw gradients whose size changes from step to step."""
    draws = torch.Generator().manual_seed(1000 + step)
    for slot in slots:
        slot.gradient.copy_(torch.randn(slot.gradient.shape, generator=draws) * 10.0 ** (step % 3 - 1))


class Plain:
    """One parameter and what is remembered of its gradients."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.w = slot, slot.parameter.double()
        self.m = self.v = self.b = torch.zeros_like(self.w)

    def update(self, config: object, rate: float, count: int) -> None:
        """Make one update by the slot's gradient."""
        g, decays = self.slot.gradient.double(), self.slot.role == "matrix"
        match config:
            case AdamWConfig():
                direction = self._adam(g, config, count)
                decay = config.weight_decay if decays else 0.0
                self.w = self.w - rate * decay * self.w - rate * direction
            case AdamConfig():
                g = g + (config.weight_decay * self.w if decays else 0.0)
                self.w = self.w - rate * self._adam(g, config, count)
            case LambConfig():
                self._lamb(g, config, rate, count)
            case SGDConfig():
                g = g + (config.weight_decay * self.w if decays else 0.0)
                factor = config.momentum if isinstance(config, MomentumConfig) else 0.0
                self.b = factor * self.b + g
                nesterov = isinstance(config, MomentumConfig) and config.nesterov
                self.w = self.w - rate * (g + factor * self.b if nesterov else self.b)

    def _adam(self, g: torch.Tensor, config: AdamWConfig | AdamConfig | LambConfig, count: int) -> torch.Tensor:
        self.m = config.beta1 * self.m + (1 - config.beta1) * g
        self.v = config.beta2 * self.v + (1 - config.beta2) * g**2
        t = count if config.bias_correction else float("inf")
        if config.epsilon_before_correction:  # the last line of section 2 in Kingma & Ba, and TensorFlow's Adam
            return (1 - config.beta2**t) ** 0.5 / (1 - config.beta1**t) * self.m / (self.v.sqrt() + config.epsilon)
        return self.m / (1 - config.beta1**t) / ((self.v / (1 - config.beta2**t)).sqrt() + config.epsilon)

    def _lamb(self, g: torch.Tensor, config: LambConfig, rate: float, count: int) -> None:
        decays = self.slot.role == "matrix" or not config.exempt_vectors
        u = self._adam(g, config, count) + (config.weight_decay * self.w if decays else 0.0)
        num_parts = self.slot.num_parts if config.split_qkv else 1
        for w, u_part in zip(self.w.chunk(num_parts), u.chunk(num_parts), strict=True):
            norm, u_norm = float(w.norm()), float(u_part.norm())
            if config.weight_norm_cap is not None:
                norm = min(norm, config.weight_norm_cap)
            ratio = norm / u_norm if norm > 0 and u_norm > 0 else 1.0
            if self.slot.role == "bias" and config.exempt_vectors:
                ratio = 1.0
            w -= rate * ratio * u_part
