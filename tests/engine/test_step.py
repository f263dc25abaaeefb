"""One step: the same whatever the micro-batches, bit-reproducible, and harmless when a number is not finite."""

import math
from collections.abc import Mapping

import pytest
import torch
from tiny import (
    gradient_distance,
    hidden_states,
    progress_of,
    random_batch,
    snapshot,
    split,
    tiny_model,
    tiny_state,
    tiny_step_config,
)

from hornbook.config.optimizers import role_of
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepResult, resident, train_step
from hornbook.objective import CausalLM, weighted_loss
from hornbook.samples.batches import Size
from hornbook.samples.windows import NOT_SCORED

DROPOUTS = {"embedding_dropout": 0.1, "residual_dropout": 0.1, "attention_dropout": 0.1}


def uneven_batch(seed: int = 0) -> dict[str, torch.Tensor]:
    """Eight samples with 1, 2, 3 ... scored tokens, one with none."""
    batch = random_batch(8, 12, seed=seed)
    for sample in range(8):
        batch["targets"][sample, (sample * sample) // 5 :] = NOT_SCORED
    return batch


def run(num_steps: int, micro_batch_size: int = 8, state: TrainState | None = None, config=None, **changes):
    state, config = state or tiny_state(**changes), config or tiny_step_config()
    results = [train_step(state, split(uneven_batch(step), micro_batch_size), config) for step in range(num_steps)]
    return state, results


class Injected(CausalLM):
    """Causal cross-entropy whose sum is multiplied by ``factor`` and moved by ``shift``, which has no gradient."""

    def __init__(self, factor: float = 1.0, shift: float = 0.0) -> None:
        self.factor, self.shift = factor, shift

    def sums(self, head, x_BTD, batch):
        return {name: total * self.factor + self.shift for name, total in super().sums(head, x_BTD, batch).items()}


def spoil_one_element(value: float):
    """An executor that leaves one bad element in one gradient; the loss stays finite."""

    def executor(state, micro_batches, objective, counts, begin):
        sums = resident(state, micro_batches, objective, counts, begin)
        state.model.blocks[1].feed_forward.down.bias.grad[3] = value
        return sums

    return executor


@pytest.mark.parametrize("micro_batch_size", [4, 2, 1, 3])
@pytest.mark.parametrize("changes", [{}, DROPOUTS], ids=["plain", "dropout"])
def test_micro_batches_change_rounding_only(micro_batch_size, changes):
    """Though each holds another number of scored tokens, and one holds none.

    Gradients are compared after the first step: AdamW then divides those that are nearly zero by themselves.
    """
    assert gradient_distance(*(snapshot(run(1, size, **changes)[0]) for size in (8, micro_batch_size))) < 1e-6
    whole, results = run(5, 8, **changes)
    parts, part_results = run(5, micro_batch_size, **changes)
    for first, second in zip(results, part_results, strict=True):
        assert second.loss == pytest.approx(first.loss, rel=1e-6)
        assert second.gradient_norm == pytest.approx(first.gradient_norm, rel=1e-5)
        assert second.size.tokens == first.size.tokens
    assert progress_of(whole) == progress_of(parts)


def test_loss_and_gradient_norm_are_those_of_plain_autograd():
    _, (result,) = run(1, 2)
    model, batch = tiny_model(), uneven_batch()
    scores = model.head.norm(hidden_states(model, batch)) @ model.embedding.tokens[:70].t()
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch["targets"].flatten())
    loss.backward()
    gradients = [parameter.grad for _, parameter in model.own_parameters()]
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    assert result.terms == {"causal_lm": result.loss}
    assert result.gradient_norm == pytest.approx(float(torch.nn.utils.get_total_norm(gradients)), rel=1e-5)
    assert result.size.tokens == int((batch["targets"] != NOT_SCORED).sum())


def test_a_step_equals_torchs_own_optimizer():
    """Ours against torch.optim.AdamW with clip_grad_norm_, on the same gradients, over several steps."""
    state, _ = run(4, 8)
    model = tiny_model()
    named = dict(model.own_parameters())
    groups = [
        {"params": [p for name, p in named.items() if role_of(name, p.shape) == "matrix"], "weight_decay": 0.1},
        {"params": [p for name, p in named.items() if role_of(name, p.shape) != "matrix"], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for step in range(4):
        batch = uneven_batch(step)
        loss = model.head.cross_entropy(hidden_states(model, batch), batch["targets"]) / int(
            (batch["targets"] != NOT_SCORED).sum()
        )
        loss.backward()
        model.fold_tied_gradients()
        torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
        optimizer.step()
        model.zero_grad()
    for name, parameter in state.model.own_parameters():
        torch.testing.assert_close(parameter, named[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, DROPOUTS], ids=["plain", "dropout"])
def test_runs_are_equal_to_the_bit(changes):
    """Memory that lies elsewhere the second time must not matter."""
    first = snapshot(run(5, 2, **changes)[0])
    clutter = [torch.empty(997 * size) for size in range(1, 50)]
    second = snapshot(run(5, 2, **changes)[0])
    del clutter
    for name, tensor in first.items():
        assert tensor.numpy().tobytes() == second[name].numpy().tobytes(), name


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["loss and gradients", "loss alone", "one gradient alone"])
def test_a_step_that_is_not_finite_is_skipped(bad, place):
    spoiled = {
        "loss and gradients": {"objective": Injected(factor=bad)},
        "loss alone": {"objective": Injected(shift=bad)},
        "one gradient alone": {"executor": spoil_one_element(bad)},
    }[place]
    state, _ = run(2)
    before = snapshot(state)
    _, (result, _) = run(2, state=state, config=tiny_step_config(**spoiled))
    assert result.skipped
    assert math.isfinite(result.loss) is (place == "one gradient alone")
    assert math.isfinite(result.gradient_norm) is (place == "loss alone")
    for name, tensor in snapshot(state).items():
        assert torch.equal(tensor, before[name]), name
    progress = state.progress
    assert (progress.step, progress.samples, progress.num_updates) == (4, 32, 2)
    assert (progress.skipped_steps, progress.skipped_in_a_row) == (2, 2)
    assert progress.tokens == 2 * sum(int((uneven_batch(step)["targets"] != NOT_SCORED).sum()) for step in (0, 1))
    assert all(parameter.grad is None for parameter in state.model.parameters())


def test_after_a_skip_the_run_continues_as_if_the_batch_did_not_exist():
    """Neither moments nor the count of updates, and so neither bias correction nor learning rate, know of it."""
    rates = []

    def schedule(count: int) -> float:
        rates.append(count)
        return 0.01 / (1 + count)

    skipping, plain = tiny_state(), tiny_state()
    healthy = tiny_step_config(schedule=schedule)
    for step in (0, None, 1, 2):
        config = tiny_step_config(schedule=schedule, objective=Injected(math.nan)) if step is None else healthy
        train_step(skipping, [uneven_batch(step or 0)], config)
    assert rates == [0, 1, 1, 2]
    run(3, state=plain, config=healthy)
    expected = snapshot(plain)
    for name, tensor in snapshot(skipping).items():
        assert torch.equal(tensor, expected[name]), name
    assert (skipping.progress.step, skipping.progress.num_updates) == (4, 3)
    assert (skipping.progress.skipped_steps, skipping.progress.skipped_in_a_row) == (1, 0)


def test_gradients_that_overflow_are_skipped_too():
    state = tiny_state()
    _, (result,) = run(1, state=state, config=tiny_step_config(objective=Injected(1e30)))
    assert math.isfinite(result.loss)
    assert result.skipped


@pytest.mark.parametrize("clip_norm", [None, 0.01, 1e9])
def test_clipping_is_by_the_norm_of_the_recipe(clip_norm):
    """Seen in the first moment, (1 - beta1) times the clipped gradient after one step."""
    state, (result,) = run(1, config=tiny_step_config(clip_norm=clip_norm))
    norm = math.sqrt(sum(float((moments["exp_avg"] / 0.1).square().sum()) for moments in state.home.moments.values()))
    assert result.gradient_norm > 0.1
    assert norm == pytest.approx(0.01 if clip_norm == 0.01 else result.gradient_norm, rel=1e-4)


def test_clipping_can_be_of_each_tensor():
    state, _ = run(1, config=tiny_step_config(clip_norm=0.01, clip_scope="per_tensor"))
    norms = [float((moments["exp_avg"] / 0.1).norm()) for moments in state.home.moments.values()]
    assert max(norms) == pytest.approx(0.01, rel=1e-4)
    assert sum(norm == pytest.approx(0.01, rel=1e-4) for norm in norms) > 5


def test_a_batch_that_scores_nothing_changes_weights_by_decay_alone():
    state = tiny_state()
    batch = random_batch(2, 8, unscored=1.0)
    before = snapshot(state)
    result = train_step(state, [batch], tiny_step_config(learning_rate=0.01))
    assert result == StepResult(
        sums={"causal_lm": 0.0},
        counts={"causal_lm": 0},
        gradient_norm=0.0,
        learning_rate=0.01,
        weights={"causal_lm": 1.0},
        size=Size(samples=2, tokens=0, padding=0),
        skipped=False,
    )
    assert result.loss is None and result.terms == {"causal_lm": None}
    for name, parameter in state.model.own_parameters():
        factor = 1 - 0.01 * 0.1 if parameter.dim() > 1 else 1.0
        torch.testing.assert_close(
            state.model.logical(name, parameter.detach()), before[f"model/{name}"] * factor, rtol=1e-6, atol=0
        )


def test_training_lowers_the_loss():
    state, config = tiny_state(), tiny_step_config()
    batch = random_batch(4, 12)
    losses = [train_step(state, [batch], config).loss for _ in range(60)]
    assert losses[0] == pytest.approx(math.log(70), rel=0.02)
    assert losses[-1] < 0.1


def test_padding_rows_stay_zero():
    state, _ = run(5)
    assert (state.model.embedding.tokens[70:] == 0).all()
    assert all((tensor[70:] == 0).all() for tensor in state.home.moments["embedding.tokens"].values())


class TwoTerms:
    """Two terms with their own counts and weights."""

    num_second = 4
    weights: Mapping[str, float] = {"first": 1.0, "second": 0.25}

    def counts(self, batch):
        return {"first": 3, "second": self.num_second}

    def sums(self, head, x_BTD, batch):
        return {"first": x_BTD.sum(), "second": x_BTD.square().sum()}


def test_terms_have_their_own_counts_and_weights():
    sums = {"a": torch.tensor(6.0), "b": torch.tensor(10.0)}
    assert float(weighted_loss(sums, {"a": 3, "b": 4}, {"a": 1.0, "b": 0.5})) == 6 / 3 + 0.5 * 10 / 4
    assert float(weighted_loss(sums, {"a": 3, "b": 0}, {"a": 2.0, "b": 0.0})) == 4.0


def test_step_reports_every_term_and_their_weighted_sum():
    state = tiny_state()
    batch = random_batch(2, 8)
    x_BTD = hidden_states(state.model, batch).detach()
    result = train_step(state, split(batch, 1), tiny_step_config(objective=TwoTerms()))
    assert result.terms == {
        "first": pytest.approx(float(x_BTD.sum()) / 6, rel=1e-4, abs=1e-6),
        "second": pytest.approx(float(x_BTD.square().sum()) / 8, rel=1e-4),
    }
    assert result.loss == pytest.approx(result.terms["first"] + 0.25 * result.terms["second"])
    assert result.size.tokens == 16


def test_a_term_that_scores_nothing_has_no_mean():
    objective = TwoTerms()
    objective.num_second = 0
    result = train_step(tiny_state(), [random_batch(2, 8)], tiny_step_config(objective=objective))
    assert result.terms["second"] is None and result.loss == result.terms["first"] and not result.skipped
