"""Loss scaling: in fp32 a power of two changes no bit, whatever the optimizer makes of the gradients."""

import pytest
import torch
from tiny import hidden_states, random_batch, snapshot, split, tiny_model, tiny_state, tiny_step_config

from hornbook.config import MomentumConfig, PrecisionConfig
from hornbook.engine.loss_scale import Scaled, build_loss_scale
from hornbook.engine.state import TrainState
from hornbook.engine.step import train_step
from hornbook.objective import CausalLM
from hornbook.optim.updates import build_update


def run(precision: PrecisionConfig, num_steps: int = 4, **changes):
    update = build_update(MomentumConfig())  # what it makes of a gradient is in proportion to it, unlike AdamW
    state = TrainState.fresh(tiny_model(), update)
    config = tiny_step_config(update=update, loss_scale=build_loss_scale(precision), **changes)
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
    assert results == expected
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
    by_step = build_loss_scale(PrecisionConfig(loss_scale_by_step=("0=128", "2=64")))
    assert [by_step(update) for update in range(4)] == [128, 128, 64, 64]
    assert [build_loss_scale(PrecisionConfig(loss_scale=32.0))(update) for update in (0, 9)] == [32, 32]
    assert build_loss_scale(PrecisionConfig())(0) == 1.0
