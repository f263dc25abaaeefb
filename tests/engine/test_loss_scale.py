"""Loss scaling: in fp32 a power of two changes no bit, whatever the optimizer makes of the gradients.

Scales that move follow the gradients of fp16, and none of their overflows reaches the weights.
"""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import tiny_layouts
import torch
from cases import mostly_slow
from tiny import (
    fresh_state,
    hidden_states,
    random_batch,
    snapshot,
    split,
    tensors_of,
    tiny_model,
    tiny_state,
    tiny_step_config,
)
from tiny_layouts import recipe_of

from hornbook.config import AdamWConfig, MomentumConfig, PrecisionConfig
from hornbook.engine.build_training import build_loss_scale
from hornbook.engine.loss_scale import DynamicScale, Scaled
from hornbook.engine.state import Progress
from hornbook.engine.step import train_step
from hornbook.objective import CausalLM
from hornbook.optim.updates import build_update
from hornbook.parallel.world import World


def run(precision: PrecisionConfig, num_steps: int = 4, **changes):
    update = build_update(MomentumConfig())  # what it makes of a gradient is in proportion to it, unlike AdamW
    state = fresh_state(tiny_model(), update)
    scale = build_loss_scale(precision, state.model, World())
    config = tiny_step_config(update=update, loss_scale=scale, **changes)
    results = [train_step(state, split(random_batch(4, 8, seed=step), 2), config) for step in range(num_steps)]
    return snapshot(state), results


@pytest.mark.parametrize(
    "precision",
    [
        PrecisionConfig(loss_scale=128.0),
        PrecisionConfig(loss_scale=2.0**-10),
        PrecisionConfig(loss_scale_by_step=("0=128", "1=32768", "3=1")),
    ],
    ids=["128", "2**-10", "by step"],
)
def test_a_power_of_two_changes_no_bit(precision):
    plain, expected = run(PrecisionConfig())
    scaled, results = run(precision)
    assert [replace(result, loss_scale=1.0) for result in results] == expected
    assert all(torch.equal(tensor, plain[name]) for name, tensor in scaled.items())


def test_another_scale_changes_rounding_only():
    plain, expected = run(PrecisionConfig())
    scaled, results = run(PrecisionConfig(loss_scale=50000.0))
    for result, twin in zip(results, expected, strict=True):
        assert result.loss == pytest.approx(twin.loss, rel=1e-6)
        assert result.gradient_norm == pytest.approx(twin.gradient_norm, rel=1e-5)
    for name, tensor in scaled.items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-4, atol=1e-6)


def test_a_scale_that_is_too_large_is_a_skipped_step():
    _, (result,) = run(PrecisionConfig(loss_scale=1e38), num_steps=1)
    assert result.skipped
    assert result.loss == run(PrecisionConfig(), num_steps=1)[1][0].loss


def test_the_backward_pass_sees_the_scale():
    objective, batch = CausalLM(), random_batch(2, 8)
    state = tiny_state()
    x_BTD = hidden_states(state.model, batch)
    scaled = Scaled(objective, 128.0)
    assert scaled.weights == {"causal_lm": 128.0}
    assert scaled.counts(batch) == objective.counts(batch)
    head = state.model.head
    assert torch.equal(scaled.sums(head, x_BTD, batch)["causal_lm"], objective.sums(head, x_BTD, batch)["causal_lm"])


def test_the_scale_of_each_update():
    model = tiny_model()
    by_step = build_loss_scale(PrecisionConfig(loss_scale_by_step=("0=128", "2=64")), model, World())
    assert [by_step.value(Progress(num_updates=update)) for update in range(4)] == [128, 128, 64, 64]
    constant = build_loss_scale(PrecisionConfig(loss_scale=32.0), model, World())
    assert [constant.value(Progress(num_updates=update)) for update in (0, 9)] == [32, 32]
    assert build_loss_scale(PrecisionConfig(), model, World()) is None
    assert build_loss_scale(PrecisionConfig(compute="fp16", loss_scale=1.0), model, World()) is None
    assert build_loss_scale(PrecisionConfig(compute="fp16"), model, World()).value(Progress()) == 32768


def narrow_run(precision: PrecisionConfig, num_steps: int, progress: Progress | None = None, **changes):
    """Train a model with fp16 activations; return the state and the results of its steps."""
    state = fresh_state(tiny_model(compute_dtype=torch.float16), build_update(AdamWConfig()))
    state.progress = progress or state.progress
    config = tiny_step_config(loss_scale=build_loss_scale(precision, state.model, World()), **changes)
    start = state.progress.step
    steps = range(start, start + num_steps)
    return state, [train_step(state, split(random_batch(4, 8, seed=step), 2), config) for step in steps]


def test_a_dynamic_scale_is_halved_by_overflows_and_grows_without():
    state, results = narrow_run(PrecisionConfig(loss_scaling="dynamic", loss_scale=2.0**22, loss_scale_interval=3), 20)
    skipped = [result.skipped for result in results]
    first = skipped.index(False)
    assert first > 2, "the first scales overflow"
    assert skipped[:first] == [True] * first
    scales = [result.loss_scale for result in results]
    assert scales[: first + 1] == [2.0 ** (22 - step) for step in range(first + 1)]
    assert scales[first + 3] == 2 * scales[first], "doubled after three updates"
    assert state.progress.skipped_in_a_row == 0
    assert state.progress.skipped_steps == sum(skipped)
    assert state.progress.num_updates == 20 - sum(skipped)
    assert all(torch.isfinite(tensor).all() for tensor in snapshot(state).values())
    assert Progress.from_json(asdict(state.progress), "state.json") == state.progress


def test_a_dynamic_scale_grows_once_in_an_interval():
    scaling, progress = DynamicScale(8.0, 3), Progress()
    scales = []
    for _ in range(7):
        scaling.adapt(progress, overflowed=False)
        scales.append(progress.loss_scale)
    assert scales == [8.0, 8.0, 16.0, 16.0, 16.0, 32.0, 32.0]


def test_an_overflow_at_the_smallest_scale_counts_as_divergence():
    progress, scale = Progress(loss_scale=2.0), DynamicScale(8.0, 10)
    assert scale.adapt(progress, overflowed=True)
    assert progress.loss_scale == 1.0
    assert not scale.adapt(progress, overflowed=True)
    assert progress.loss_scale == 1.0


def test_without_a_scale_fp16_loses_gradients():
    """Those of query and key are small; the scale with which fp16 begins by default keeps them."""

    def share_of_zeros(precision: PrecisionConfig) -> float:
        state, results = narrow_run(precision, 1)
        assert not results[0].skipped
        moments = snapshot(state)["optimizer/blocks.0.attention.qkv.bias.exp_avg"]
        return float((moments == 0).float().mean())

    assert share_of_zeros(PrecisionConfig(compute="fp16", loss_scale=1.0)) > 0.1
    assert share_of_zeros(PrecisionConfig(compute="fp16")) == 0.0


def test_a_histogram_scale_doubles_up_to_the_largest_while_gradients_are_far_from_overflow():
    """With weights that hardly move: at scale 2^15, the greatest gradient of any step is 9 % below what halves it.

    The processor's rounding moves it by less than 0.1 %. At a large learning rate, it decides where a training goes.
    """
    precision = PrecisionConfig(compute="fp16", loss_scaling="histogram", loss_scale=1.0)
    _, results = narrow_run(precision, 30, learning_rate=1e-5)
    assert [result.loss_scale for result in results] == [2.0 ** min(step, 15) for step in range(30)]
    assert not any(result.skipped for result in results)


def test_a_histogram_scale_is_halved_before_gradients_overflow():
    """A long sum, as of an objective with a weight of 2000, brings gradients of 4094 at a scale far below 2^15."""
    objective = CausalLM()
    objective.weights = {"causal_lm": 2000.0}
    state = fresh_state(tiny_model(compute_dtype=torch.float16), build_update(AdamWConfig()))
    precision = PrecisionConfig(compute="fp16", loss_scaling="histogram", loss_scale=64.0)
    scale = build_loss_scale(precision, state.model, World())
    config = tiny_step_config(loss_scale=scale, objective=objective, learning_rate=1e-5)
    results = [train_step(state, split(random_batch(4, 8, seed=step), 2), config) for step in range(30)]
    scales = [result.loss_scale for result in results]
    ups = [later > sooner for sooner, later in pairwise(scales[10:])]
    assert max(scales) < 2.0**15
    assert True in ups
    assert False in ups, "it goes up and down by a factor of 2"
    assert set(scales[10:]) <= {max(scales[10:]) / 2**power for power in range(3)}


@pytest.mark.parametrize("scaling", ["dynamic", "histogram"])
@pytest.mark.parametrize("model", mostly_slow(["bert packed", "groupbert"]))
def test_encoders_learn_in_fp16(model, scaling, monkeypatch):
    """fp16 keeps 11 bits: losses of fp32 to two thousandths, with dropout and clipping."""
    expected = tiny_layouts.train(recipe_of(model, "adamw"), World(), steps=6)
    fp16 = f"precision.compute=fp16 precision.loss_scaling={scaling}"
    monkeypatch.setattr(tiny_layouts, "SIZES", tiny_layouts.SIZES.replace("precision.compute=fp32", fp16))
    found = tiny_layouts.train(recipe_of(model, "adamw"), World(), steps=6)
    assert found.losses == pytest.approx(expected.losses, rel=2e-3)
    assert found.losses != expected.losses


@pytest.mark.parametrize("kind", ["dynamic", "histogram"])
def test_a_resumed_run_continues_with_the_scale(kind):
    precision = PrecisionConfig(compute="fp16", loss_scaling=kind, loss_scale=2.0**8, loss_scale_interval=2)
    whole, expected = narrow_run(precision, 8)
    state, results = narrow_run(precision, 5)
    resumed = Progress.from_json(asdict(state.progress), "state.json")
    assert resumed.loss_scale not in (None, 2.0**8)
    second = fresh_state(tiny_model(compute_dtype=torch.float16), build_update(AdamWConfig()))
    second.progress = resumed
    second.load_tensors({name: dict(tensors) for name, tensors in tensors_of(state).items()})
    config = tiny_step_config(loss_scale=build_loss_scale(precision, second.model, World()))
    results += [train_step(second, split(random_batch(4, 8, seed=step), 2), config) for step in range(5, 8)]
    assert results == expected
    ours, theirs = snapshot(second), snapshot(whole)
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
