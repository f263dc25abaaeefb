"""Every optimizer against its formula in float64, and against torch's own where torch has it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import all_native
from plain_updates import SHAPES, Plain, give_gradients, make_slots

from hornbook.config import AdamConfig, AdamWConfig, LambConfig, MomentumConfig, SGDConfig, choices
from hornbook.errors import UserError
from hornbook.model import MODELS
from hornbook.objective import OBJECTIVES
from hornbook.ops.native.kernels import Kernels, using
from hornbook.optim.schedules import SCHEDULES
from hornbook.optim.slots import Slot
from hornbook.optim.updates import UPDATES, adamw, build_update

CONFIGS = [
    AdamWConfig(),
    AdamWConfig(weight_decay=0.0),
    AdamWConfig(beta1=0.0, beta2=0.999, epsilon=1e-3),
    AdamWConfig(beta1=0.95, beta2=0.5, weight_decay=1.0),
    AdamWConfig(bias_correction=False, epsilon=1e-6),
    AdamConfig(),
    AdamConfig(weight_decay=0.3),
    AdamConfig(weight_decay=0.3, bias_correction=False, epsilon=1e-2),
    AdamConfig(epsilon=1e-2, epsilon_before_correction=True),
    AdamWConfig(epsilon=1e-2, epsilon_before_correction=True),
    LambConfig(epsilon=1e-2, epsilon_before_correction=True),
    SGDConfig(),
    SGDConfig(weight_decay=0.3),
    MomentumConfig(momentum=0.984375),
    MomentumConfig(weight_decay=0.3, nesterov=True),
    LambConfig(),
    LambConfig(bias_correction=False),
    LambConfig(split_qkv=False),
    LambConfig(weight_norm_cap=2.0),
    LambConfig(exempt_vectors=False, weight_decay=0.3, epsilon=1e-4),
    LambConfig(weight_decay=0.0),
]
one_of_each = pytest.mark.parametrize(
    "config", [AdamWConfig(), AdamConfig(), SGDConfig(), MomentumConfig(), LambConfig()], ids=lambda config: config.name
)


def train(config, slots: list[Slot], num_steps: int = 7, rate: float = 0.1) -> None:
    update = build_update(config)
    for count in range(1, num_steps + 1):
        give_gradients(slots, count)
        update.apply(slots, rate / count, count)


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_several_steps_equal_the_formula(config):
    update = build_update(config)
    slots = make_slots(update.states)
    plain = [Plain(slot) for slot in slots]
    for count in range(1, 8):
        give_gradients(slots, count)
        for reference in plain:
            reference.update(config, 0.1 / count, count)
        update.apply(slots, 0.1 / count, count)
        for slot, reference in zip(slots, plain, strict=True):
            torch.testing.assert_close(slot.parameter.double(), reference.w, rtol=2e-5, atol=2e-6)
            states = {"exp_avg": reference.m, "exp_avg_sq": reference.v, "momentum": reference.b}
            for name, tensor in slot.state.items():
                torch.testing.assert_close(tensor.double(), states[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("config", [config for config in CONFIGS if build_update(config).clips], ids=repr)
def test_native_updates_equal_the_formula(config, monkeypatch):
    native = all_native()
    monkeypatch.setattr("hornbook.optim.adam.torch_adam", None)
    with using(native):
        test_several_steps_equal_the_formula(config)


@pytest.mark.parametrize("is_native", [False, True])
@one_of_each
def test_updates_that_clip_see_smaller_gradients(config, is_native):
    update = build_update(config)
    if not update.clips:
        assert config.name in ("sgd", "momentum"), "the step clips for them"
        return
    slots, twins = make_slots(update.states), make_slots(update.states)
    with using(all_native() if is_native else Kernels(why="test")):
        for count in (1, 2):
            give_gradients(slots, count)
            give_gradients(twins, count)
            torch._foreach_mul_([twin.gradient for twin in twins], 0.25)
            update.apply([replace(slot, clip=0.25) for slot in slots], 0.1, count)
            update.apply(twins, 0.1, count)
    for slot, twin in zip(slots, twins, strict=True):
        torch.testing.assert_close(slot.parameter, twin.parameter, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (AdamWConfig(), lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)),
        (AdamConfig(weight_decay=0.1), lambda groups: torch.optim.Adam(groups, betas=(0.9, 0.999), eps=1e-8)),
        (SGDConfig(weight_decay=0.1), torch.optim.SGD),
        (MomentumConfig(weight_decay=0.1), lambda groups: torch.optim.SGD(groups, momentum=0.9)),
        (
            MomentumConfig(weight_decay=0.1, nesterov=True),
            lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
        ),
    ],
    ids=lambda config: getattr(config, "name", ""),
)
def test_torchs_own_optimizers_do_the_same(config, make):
    slots, twins = make_slots(build_update(config).states), make_slots(lambda *_: {})
    groups = [
        {"params": [slot.parameter for slot in twins if slot.decay is decay], "weight_decay": 0.1 * decay, "lr": 0.1}
        for decay in (True, False)
    ]
    optimizer = make(groups)
    train(config, slots)
    for count in range(1, 8):
        give_gradients(twins, count)
        for twin in twins:
            twin.parameter.grad = twin.gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / count
        optimizer.step()
    for slot, twin in zip(slots, twins, strict=True):
        torch.testing.assert_close(slot.parameter, twin.parameter, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("config", [AdamWConfig(epsilon=1e-12), AdamConfig(epsilon=1e-12)])
def test_first_update_has_the_size_of_the_rate(config):
    """Bias correction: whatever the gradient's size, the first step is rate · sign(gradient)."""
    for size in (1e-4, 1.0, 1e4):
        slot = make_slots()[2]
        before = slot.parameter.clone()
        slot.gradient.mul_(size)
        build_update(config).apply([slot], 0.01, 1)
        torch.testing.assert_close(before - slot.parameter, 0.01 * slot.gradient.sign(), rtol=1e-3, atol=1e-7)


def test_tensorflows_epsilon_in_closed_form():
    """System A's: of a constant gradient g, v is (1 - β₂ᵗ) g², so each step is rate · g / (|g| + ε / √(1 - β₂ᵗ))."""
    config = AdamConfig(epsilon=1e-2, epsilon_before_correction=True)
    slot, update = make_slots()[2], build_update(config)
    slot.gradient.mul_(1e-3)
    for count in (1, 2, 3):
        before, corrected = slot.parameter.clone(), config.epsilon / (1 - config.beta2**count) ** 0.5
        update.apply([slot], 0.01, count)
        expected = 0.01 * slot.gradient / (slot.gradient.abs() + corrected)
        torch.testing.assert_close(before - slot.parameter, expected, rtol=1e-2, atol=2e-7)


@pytest.mark.parametrize("count", [1, 100])
def test_without_bias_correction_the_number_of_the_update_is_nothing(count):
    slot = make_slots()[2]
    before = slot.parameter.clone()
    build_update(AdamWConfig(bias_correction=False, beta2=0.99, epsilon=1e-12)).apply([slot], 0.01, count)
    torch.testing.assert_close(before - slot.parameter, 0.01 * slot.gradient.sign(), rtol=1e-3, atol=1e-7)


@one_of_each
def test_with_zero_gradients_nothing_moves_but_what_decays(config):
    slots = make_slots(build_update(config).states)
    before = [slot.parameter.clone() for slot in slots]
    for slot in slots:
        slot.gradient.zero_()
    build_update(config).apply(slots, 0.1, 1)
    for slot, old in zip(slots, before, strict=True):
        factor = {"adamw": 1 - 0.1 * 0.1, "lamb": 1 - 0.1}.get(config.name, 1.0) if slot.role == "matrix" else 1.0
        torch.testing.assert_close(slot.parameter, old * factor)


@one_of_each
def test_all_zero_stays_zero(config):
    slots = make_slots(build_update(config).states)
    for slot in slots:
        slot.parameter.zero_()
        slot.gradient.zero_()
    build_update(config).apply(slots, 0.1, 1)
    assert all(not slot.parameter.any() for slot in slots)


@settings(max_examples=10, deadline=None)
@given(cut=st.integers(0, len(SHAPES)), order=st.permutations(range(len(SHAPES))))
@one_of_each
def test_block_by_block_equals_all_at_once_bit_for_bit(config, cut, order):
    update = build_update(config)
    whole, parts = make_slots(update.states), make_slots(update.states)
    for count in (1, 2, 3):
        for slots in (whole, parts):
            give_gradients(slots, count)
        update.apply(whole, 0.01, count)
        for chosen in (order[:cut], order[cut:]):
            update.apply([parts[index] for index in chosen], 0.01, count)
    for first, second in zip(whole, parts, strict=True):
        assert torch.equal(first.parameter, second.parameter)
        for name, tensor in first.state.items():
            assert torch.equal(tensor, second.state[name])


def test_built_update_applies_the_config():
    config = AdamWConfig(beta1=0.5, beta2=0.6, weight_decay=0.3)
    built, called = make_slots(), make_slots()
    build_update(config).apply(built, 0.02, 4)
    adamw(called, config, learning_rate=0.02, count=4)
    for first, second in zip(built, called, strict=True):
        assert torch.equal(first.parameter, second.parameter)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(UserError, match="there is no optimizer for int: register a function for it"):
        build_update(3)


@pytest.mark.parametrize(
    ("section", "table"),
    [("optimizer", UPDATES), ("schedule", SCHEDULES), ("objective", OBJECTIVES), ("model", MODELS)],
)
def test_every_choice_of_a_recipe_has_an_entry_in_the_table_of_builders(section, table):
    assert set(choices(section).values()) == set(table)
