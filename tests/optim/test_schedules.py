import math
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.config import (
    ByStepConfig,
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    NaturalExponentialConfig,
    PolynomialConfig,
    WarmupStableDecayConfig,
)
from hornbook.errors import UserError
from hornbook.optim.schedules import (
    build_schedule,
    constant,
    cosine,
    linear,
    natural_exponential,
    polynomial,
    warmup_steps_of,
)

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


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (0, math.sqrt(1 / 4)),
        (1, math.sqrt(2 / 4)),
        (3, 1.0),
        (4, 1.0),
        (6, 0.1 + 0.9 * (6 / 8) ** 2),
        (8, 0.1 + 0.9 * (4 / 8) ** 2),
        (11, 0.1 + 0.9 * (1 / 8) ** 2),
        (12, 0.1),
    ],
)
def test_polynomial(step, factor):
    powers = {"warmup_power": 0.5, "decay_power": 2.0, "decay_steps": None}
    assert polynomial(step, **DECAY, **powers) == pytest.approx(factor, abs=1e-15)


@given(step=st.integers(0, 20))
def test_polynomial_of_power_one_is_linear(step):
    powers = {"warmup_power": 1.0, "decay_power": 1.0, "decay_steps": None}
    assert polynomial(step, **DECAY, **powers) == pytest.approx(linear(step, **DECAY), abs=1e-15)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.5), (1, 1.0), (2, 1.0), (6, 1.0), (7, math.exp(-0.3)), (11, math.exp(-0.3)), (22, math.exp(-1.2))],
)
def test_natural_exponential(step, factor):
    assert natural_exponential(step, warmup_steps=2, stair_steps=5, stair_decay=0.3) == factor


@pytest.mark.parametrize(("step", "factor"), [(0, 0.5), (9, 0.5), (10, 1.0), (99, 1.0), (100, 0.25), (10**9, 0.25)])
def test_by_step(step, factor):
    schedule = build_schedule(ByStepConfig(factors=("100=0.25", "0=0.5", "10=1")), num_steps=7)
    assert schedule(step) == factor


def rates(config, num_steps: int, peak: float, *steps: int) -> list[float]:
    schedule = build_schedule(config, num_steps)
    return [peak * schedule(step) for step in steps]


def test_the_schedules_that_the_old_systems_shipped():
    """Where these began with a rate of 0, ours is one update earlier on the way up."""
    bert_large = LinearConfig(warmup_steps=2000)  # system E, phase 1, a table of every 16th step
    assert rates(bert_large, 7038, 0.006, 1998, 1999, 7008) == pytest.approx([5.997e-3, 6e-3, 3.57e-5], rel=1e-3)
    table = ByStepConfig(factors=("0=1e-7", "2000=.005997", "7008=3.57e-5"))
    assert rates(table, 7264, 1.0, 1999, 2000, 7007, 7008, 7263) == [1e-7, 0.005997, 0.005997, 3.57e-5, 3.57e-5]
    tiny = NaturalExponentialConfig(warmup_steps=128, stair_steps=512, stair_decay=0.051)  # system E
    expected = [2e-4, 4e-4, 4e-4, 4e-4 * math.exp(-0.051), 4e-4 * math.exp(-0.102)]
    assert rates(tiny, 10**4, 4e-4, 63, 127, 639, 640, 1152) == pytest.approx(expected, rel=1e-12)


def test_groupberts_square_root_warmup():
    """System C, phase 1: 1470 of 10500 steps up to .012, then straight down to 1e-7."""
    config = PolynomialConfig(warmup_fraction=0.14, warmup_power=0.5, final_fraction=1e-7 / 0.012)
    halfway = (0.012 + 1e-7) / 2
    expected = [0.012 * math.sqrt(1 / 1470), 0.006, 0.012, halfway, 1e-7]
    found = rates(config, 10500, 0.012, 0, 1470 // 4 - 1, 1469, (1470 + 10500) // 2, 10500)
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_square_root_decay_to_a_minimum():
    """System A: min + (peak - min) · (1 - progress) ** 0.5 over the cool-down, then the minimum."""
    config = PolynomialConfig(warmup_steps=1000, decay_power=0.5, decay_steps=10_000, final_fraction=0.04)
    expected = [2e-4, 8e-6 + 1.92e-4 * math.sqrt(0.75), 8e-6 + 1.92e-4 * math.sqrt(0.25), 8e-6, 8e-6]
    assert rates(config, 10**6, 2e-4, 1000, 3500, 8500, 11_000, 900_000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("fraction", "num_steps", "warmup_steps"),
    [(0.28, 10500, 2940), (0.14, 10500, 1470), (0.13, 2038, 265), (0.128, 2038, 261), (0.0, 9, 0), (1.0, 9, 9)],
)
def test_a_warmup_given_as_a_fraction(fraction, num_steps, warmup_steps):
    """Of the decimal number, rounded up: 0.28 * 10500 is more than 2940 in floats."""
    for kind in (
        ConstantConfig,
        LinearConfig,
        CosineConfig,
        WarmupStableDecayConfig,
        PolynomialConfig,
        NaturalExponentialConfig,
    ):
        config = kind(warmup_fraction=fraction)
        assert warmup_steps_of(config, num_steps) == warmup_steps
        schedule = build_schedule(config, num_steps)
        same = build_schedule(kind(warmup_steps=warmup_steps), num_steps)
        assert [schedule(step) for step in range(0, num_steps, 7)] == [same(step) for step in range(0, num_steps, 7)]


@pytest.mark.parametrize("kind", [LinearConfig, CosineConfig, WarmupStableDecayConfig, PolynomialConfig])
def test_a_decay_may_end_before_the_run(kind):
    """Megatron-LM's --lr-decay-iters counts the warm-up, and --lr-warmup-fraction is a fraction of it."""
    config = kind(warmup_fraction=0.01, decay_end=7000, final_fraction=0.1)
    assert warmup_steps_of(config, 10_000) == 70
    ends_there = build_schedule(kind(warmup_steps=70, final_fraction=0.1), 7000)
    schedule = build_schedule(config, 10_000)
    steps = [0, 69, 70, 3500, 6999, 7000, 9999]
    assert [schedule(step) for step in steps] == [ends_there(step) for step in steps]
    assert schedule(9999) == pytest.approx(0.1)


def test_a_stable_rate_then_a_decay():
    """A fifth of 50 steps decays: linearly, or as 1 - sqrt(progress)."""
    linearly = rates(WarmupStableDecayConfig(warmup_steps=5), 50, 2.0, 0, 4, 5, 40, 41, 45, 49, 50, 99)
    assert linearly == pytest.approx([0.4, 2.0, 2.0, 2.0, 1.8, 1.0, 0.2, 0.0, 0.0])
    by_root = WarmupStableDecayConfig(warmup_steps=5, decay_power=0.5, final_fraction=0.1)
    assert rates(by_root, 50, 1.0, 40, 41, 50) == pytest.approx([1.0, 1 - 0.9 * math.sqrt(0.1), 0.1])
    assert rates(WarmupStableDecayConfig(decay_fraction=1.0), 4, 1.0, 0, 1, 2, 3) == [1.0, 0.75, 0.5, 0.25]
    assert rates(WarmupStableDecayConfig(warmup_steps=9), 10, 1.0, 7, 8, 9, 10) == pytest.approx([8 / 9, 1, 1, 0])


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.01, 1), st.floats(0.1, 3))
def test_a_longer_run_has_the_same_rates_up_to_the_decay(warmup, more, fraction, power):
    config = WarmupStableDecayConfig(warmup_steps=warmup, decay_fraction=fraction, decay_power=power)
    short, long = (build_schedule(config, 60 + further) for further in (0, more))
    start = max(warmup, 60 - math.ceil(Decimal(str(fraction)) * 60))
    assert [short(step) for step in range(start + 1)] == [long(step) for step in range(start + 1)]


def test_decay_steps_are_those_of_the_decay_without_the_warmup():
    """As the row of system B's --lr-decay-steps says."""
    by_end = build_schedule(PolynomialConfig(warmup_steps=70, decay_end=7000), 10_000)
    by_length = build_schedule(PolynomialConfig(warmup_steps=70, decay_steps=7000 - 70), 10_000)
    assert [by_end(step) for step in range(0, 10_000, 7)] == [by_length(step) for step in range(0, 10_000, 7)]


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


@given(
    warmup_steps=st.integers(0, 20),
    plans=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 300)), min_size=1, max_size=5),
    decay_fraction=st.sampled_from([0.2, 0.65, 1.0]),
    decay_power=st.sampled_from([1.0, 0.5]),
)
def test_a_corrected_length_keeps_the_rates_before_it(warmup_steps, plans, decay_fraction, decay_power):
    at, entries, before = 0, [], None
    for gap, left in plans:
        entries.append(f"{at}={max(warmup_steps, at) + left}")
        config = WarmupStableDecayConfig(
            warmup_steps=warmup_steps, decay_fraction=decay_fraction, decay_power=decay_power, lengths=tuple(entries)
        )
        length = max(warmup_steps, at) + left
        factors = [build_schedule(config, 7)(step) for step in range(length + 1)]
        assert before is None or factors[: at + 1] == before[: at + 1]
        assert all(later <= earlier for earlier, later in pairwise(factors[max(warmup_steps, 1) - 1 :]))
        assert factors[-1] == 0.0
        at, before = min(at + gap, length), factors
        if at == length:
            break


def test_a_corrected_decay_continues_from_its_rate():
    config = WarmupStableDecayConfig(decay_fraction=0.5, lengths=("0=10", "7=9"))
    factors = [build_schedule(config, 9)(step) for step in range(9)]
    assert factors == pytest.approx([1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.3])
    longer = WarmupStableDecayConfig(decay_fraction=0.5, lengths=("0=10", "3=20"))
    assert [build_schedule(longer, 20)(step) for step in (9, 10, 15)] == [1, 1, 0.5]


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
