import pytest
import torch
from tiny import random_batch, tiny_model
from torch.nn import functional

from hornbook.config import CausalLMConfig
from hornbook.objective import CausalLM, RecurrenceWeightedLM, build_objective, recurrence_weights, weighted_loss


def test_recurrence_weights_divide_by_the_count_in_the_window():
    targets = torch.tensor([[7, 3, 7, 7, 5, 3], [-100, 7, 1, 2, 3, 4]])
    expected = [[1 / 3, 1 / 2, 1 / 3, 1 / 3, 1, 1 / 2], [1, 1, 1, 1, 1, 1]]
    torch.testing.assert_close(recurrence_weights(targets), torch.tensor(expected))


def test_the_weighted_loss_is_divided_by_the_number_of_targets_and_the_unweighted_one_is_reported_too():
    model, objective = tiny_model(), build_objective(CausalLMConfig(recurrence_weights=True))
    assert isinstance(objective, RecurrenceWeightedLM)
    batch = random_batch(2, 20, vocab_size=9, unscored=0.2)
    counts, sums = objective.counts(batch), model(objective.sums, batch)
    scored = batch["targets"] != -100
    assert counts == dict.fromkeys(("causal_lm", "recurrence_weighted"), int(scored.sum()))

    logits = model(lambda head, x_BTD, _: head.logits(x_BTD), batch)
    losses = functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="none").view(2, 20)
    times = [[sum(int(other == one) for other in row) for one in row] for row in batch["targets"]]
    expected = (losses / torch.tensor(times)).sum() / scored.sum()
    loss = weighted_loss(sums, counts, objective.weights)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(sums["causal_lm"], model(CausalLM().sums, batch)["causal_lm"])

    loss.backward()
    gradient = model.blocks[0].feed_forward.up.weight.grad.clone()
    model.zero_grad()
    expected.backward()
    torch.testing.assert_close(gradient, model.blocks[0].feed_forward.up.weight.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", [False, True])
def test_the_options_of_a_causal_lm_choose_the_objective(weights):
    assert ("recurrence_weighted" in build_objective(CausalLMConfig(recurrence_weights=weights)).weights) == weights
