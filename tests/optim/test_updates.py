"""AdamW and clipping against their equations in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.config import AdamWConfig
from hornbook.optim.updates import Slot, adamw, build_update, clip_by_global_norm

SHAPES = [(3, 5), (7,), (1,), (2, 3, 4), (33, 17)]


def make_slots(seed: int = 0, decay: bool | None = None) -> list[Slot]:
    """Fresh slots of several shapes; matrices are decayed unless ``decay`` says otherwise for all."""
    draws = torch.Generator().manual_seed(seed)
    return [
        Slot(
            parameter=torch.randn(shape, generator=draws),
            gradient=torch.randn(shape, generator=draws),
            state={"exp_avg": torch.zeros(shape), "exp_avg_sq": torch.zeros(shape)},
            decay=len(shape) > 1 if decay is None else decay,
        )
        for shape in SHAPES
    ]


def gradients_of(step: int) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(shape, generator=draws) * 10.0 ** (step % 3 - 1) for shape in SHAPES]


class Reference:
    """The equations of the docstring, in float64."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.w, self.m, self.v = parameter.double(), 0.0, 0.0

    def update(self, gradient: torch.Tensor, config: AdamWConfig, rate: float, count: int, decay: float) -> None:
        g = gradient.double()
        self.w = self.w - rate * decay * self.w
        self.m = config.beta1 * self.m + (1 - config.beta1) * g
        self.v = config.beta2 * self.v + (1 - config.beta2) * g**2
        m, v = self.m / (1 - config.beta1**count), self.v / (1 - config.beta2**count)
        self.w = self.w - rate * m / (v.sqrt() + config.epsilon)


@pytest.mark.parametrize(
    "config",
    [
        AdamWConfig(),
        AdamWConfig(weight_decay=0.0),
        AdamWConfig(beta1=0.0, beta2=0.999, epsilon=1e-3),
        AdamWConfig(beta1=0.95, beta2=0.5, weight_decay=1.0),
    ],
)
def test_several_steps_equal_the_equations(config):
    slots = make_slots()
    references = [Reference(slot.parameter) for slot in slots]
    for count in range(1, 8):
        rate = 0.1 / count
        for slot, gradient, reference in zip(slots, gradients_of(count), references, strict=True):
            slot.gradient.copy_(gradient)
            reference.update(gradient, config, rate, count, config.weight_decay if slot.decay else 0.0)
        adamw(slots, config, learning_rate=rate, count=count)
        for slot, reference in zip(slots, references, strict=True):
            torch.testing.assert_close(slot.parameter.double(), reference.w, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(slot.state["exp_avg"].double(), reference.m, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(slot.state["exp_avg_sq"].double(), reference.v, rtol=1e-5, atol=1e-6)


def test_first_update_has_the_size_of_the_rate():
    """Bias correction: whatever the gradient's size, the first step is rate · sign(gradient)."""
    for size in (1e-4, 1.0, 1e4):
        slot = make_slots(decay=False)[0]
        before = slot.parameter.clone()
        slot.gradient.mul_(size)
        adamw([slot], AdamWConfig(epsilon=1e-12), learning_rate=0.01, count=1)
        torch.testing.assert_close(before - slot.parameter, 0.01 * slot.gradient.sign(), rtol=1e-3, atol=1e-7)


def test_decay_is_decoupled_and_for_marked_slots_only():
    """With zero gradients nothing moves but what decays."""
    config = AdamWConfig(weight_decay=0.5)
    for decay, factor in ((True, 0.95), (False, 1.0)):
        slots = make_slots(decay=decay)
        before = [slot.parameter.clone() for slot in slots]
        for slot in slots:
            slot.gradient.zero_()
        adamw(slots, config, learning_rate=0.1, count=1)
        for slot, old in zip(slots, before, strict=True):
            torch.testing.assert_close(slot.parameter, old * factor)


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, len(SHAPES)), order=st.permutations(range(len(SHAPES))))
def test_block_by_block_equals_all_at_once_bit_for_bit(cut, order):
    config = AdamWConfig()
    whole, parts = make_slots(), make_slots()
    for count in (1, 2, 3):
        for slots in (whole, parts):
            for slot, gradient in zip(slots, gradients_of(count), strict=True):
                slot.gradient.copy_(gradient)
        adamw(whole, config, learning_rate=0.01, count=count)
        for chosen in (order[:cut], order[cut:]):
            adamw([parts[index] for index in chosen], config, learning_rate=0.01, count=count)
    for first, second in zip(whole, parts, strict=True):
        assert torch.equal(first.parameter, second.parameter)
        for name, tensor in first.state.items():
            assert torch.equal(tensor, second.state[name])


def test_built_update_names_its_states_and_applies_the_config():
    config = AdamWConfig(beta1=0.5, beta2=0.6, weight_decay=0.3)
    update = build_update(config)
    built, called = make_slots(), make_slots()
    assert set(update.state_names) == set(built[0].state)
    update.apply(built, 0.02, 4)
    adamw(called, config, learning_rate=0.02, count=4)
    for first, second in zip(built, called, strict=True):
        assert torch.equal(first.parameter, second.parameter)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(TypeError, match="no optimizer is registered for int"):
        build_update(3)


@pytest.mark.parametrize(("limit", "clipped"), [(0.5, True), (4.9, True), (5.0, False), (5.1, False)])
def test_clipping_keeps_the_direction_and_the_limit(limit, clipped):
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    clip_by_global_norm(gradients, 5.0, limit)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norm == pytest.approx(limit if clipped else 5.0)
    assert float(gradients[0][0] / gradients[1][0, 0]) == pytest.approx(0.75)
    if not clipped:
        assert gradients[0].tolist() == [3.0, 0.0], "untouched, to the bit"
