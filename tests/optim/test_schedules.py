import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.config import ConstantConfig, CosineConfig, LinearConfig
from hornbook.errors import UserError
from hornbook.optim.schedules import build_schedule, constant, cosine, linear

# 4 steps of warm-up and 8 of decay: the last point is the first update that is not made.
DECAY = {"num_steps": 12, "warmup_steps": 4, "final_fraction": 0.1}


@pytest.mark.parametrize(("step", "factor"), [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (10**6, 1.0)])
def test_constant(step, factor):
    assert constant(step, warmup_steps=4) == factor


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 0.25), (3, 1.0), (4, 1.0), (6, 0.775), (8, 0.55), (10, 0.325), (12, 0.1)]
)
def test_linear(step, factor):
    assert linear(step, **DECAY) == pytest.approx(factor, abs=1e-15)


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (0, 0.25),
        (3, 1.0),
        (4, 1.0),
        (6, 0.1 + 0.9 * (2 + math.sqrt(2)) / 4),
        (8, 0.55),
        (10, 0.1 + 0.9 * (2 - math.sqrt(2)) / 4),
        (12, 0.1),
    ],
)
def test_cosine(step, factor):
    assert cosine(step, **DECAY) == pytest.approx(factor, abs=1e-15)


def test_the_example_of_the_module():
    factors = [cosine(step, num_steps=10, warmup_steps=4, final_fraction=0.1) for step in range(11)]
    assert [round(factor, 2) for factor in factors] == [0.25, 0.5, 0.75, 1.0, 1.0, 0.94, 0.78, 0.55, 0.33, 0.16, 0.1]


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_a_longer_run_stays_at_the_final_fraction(schedule):
    assert [schedule(step, **DECAY) for step in (12, 13, 10**6)] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_a_run_that_ends_within_its_warmup_never_decays(schedule):
    factors = [schedule(step, num_steps=5, warmup_steps=10, final_fraction=0.0) for step in range(5)]
    assert factors == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert schedule(9, num_steps=10, warmup_steps=10, final_fraction=0.0) == 1.0


@given(
    warmup_steps=st.integers(0, 50),
    decay_steps=st.integers(1, 200),
    final_fraction=st.floats(0, 1),
    schedule=st.sampled_from([linear, cosine]),
)
def test_up_to_the_peak_then_down(warmup_steps, decay_steps, final_fraction, schedule):
    num_steps = warmup_steps + decay_steps
    factors = [
        schedule(step, num_steps=num_steps, warmup_steps=warmup_steps, final_fraction=final_fraction)
        for step in range(num_steps + 1)
    ]
    assert factors[: warmup_steps + 1] == sorted(factors[: warmup_steps + 1]) and factors[0] > 0
    assert factors[warmup_steps] == max(factors) == 1.0
    falling = factors[warmup_steps:]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(falling))
    assert factors[-1] == pytest.approx(final_fraction, abs=1e-12)


def test_recipes_choose_the_schedule():
    steps = range(13)
    for config, expected in [
        (ConstantConfig(warmup_steps=4), [constant(step, warmup_steps=4) for step in steps]),
        (LinearConfig(warmup_steps=4, final_fraction=0.1), [linear(step, **DECAY) for step in steps]),
        (CosineConfig(warmup_steps=4, final_fraction=0.1), [cosine(step, **DECAY) for step in steps]),
    ]:
        schedule = build_schedule(config, num_steps=12)
        assert [schedule(step) for step in steps] == expected


def test_defaults_have_no_warmup_and_decay_to_nothing():
    assert build_schedule(CosineConfig(), 10)(0) == 1.0
    assert build_schedule(LinearConfig(), 10)(10) == 0.0
    assert build_schedule(ConstantConfig(), 10)(9) == 1.0


def test_ones_own_schedule():
    @dataclass(frozen=True, kw_only=True)
    class HalvingConfig:
        every_steps: int

    with pytest.raises(UserError, match=r"^there is no schedule for HalvingConfig: register "):
        build_schedule(HalvingConfig(every_steps=2), 10)

    @build_schedule.register
    def _(config: HalvingConfig, num_steps: int):
        return lambda step: 0.5 ** (step // config.every_steps)

    assert [build_schedule(HalvingConfig(every_steps=2), 10)(step) for step in (0, 1, 2, 4)] == [1, 1, 0.5, 0.25]
