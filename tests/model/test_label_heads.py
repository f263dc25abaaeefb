"""Heads of fine-tuned encoders: the same whatever the layout, counted right, and drawn from the seed."""

import pytest
import torch
from cases import mostly_slow
from tiny import hidden_states
from tiny_encoders import FAMILIES, LAYOUTS, lay_out, make_samples, tiny_encoder, tiny_encoder_config

from hornbook.config import ClassificationConfig, MaskedLMConfig, PretrainingConfig, SpanConfig
from hornbook.model import build_model, initialize
from hornbook.objective import build_objective
from hornbook.samples.batches import to_device

HEADS = {
    "classification": ({"head": "classification", "num_labels": 3}, ClassificationConfig(), torch.tensor([2, -100, 0])),
    "span": ({"head": "span"}, SpanConfig(), torch.tensor([[1, 3], [-100, -100], [0, 6]])),
}
LENGTHS = (20, 5, 7)


def outcome(model, objective, labels, layout):
    """Sums, counts and all gradients of one micro-batch."""
    batch = {**lay_out(make_samples(LENGTHS), layout), "labels": labels}
    model.zero_grad()
    sums = objective.sums(model.head, hidden_states(model, batch), batch)
    first = next(iter(objective.weights))
    sums[first].backward()
    model.fold_tied_gradients()
    gradients = {name: parameter.grad.clone() for name, parameter in model.own_parameters()}
    return {name: value.detach() for name, value in sums.items()}, objective.counts(batch), gradients


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", HEADS)
def test_no_layout_changes_loss_gradients_or_dropout(family, head):
    changes, config, labels = HEADS[head]
    model, objective = tiny_encoder(family, residual_dropout=0.2, **changes).train(), build_objective(config)
    expected = outcome(model, objective, labels, LAYOUTS[0])
    assert set(expected[1].values()) == {2}
    for layout in LAYOUTS[1:]:
        torch.testing.assert_close(outcome(model, objective, labels, layout), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", HEADS)
def test_parameters_are_counted_and_drawn_from_the_seed(family, head):
    changes, _, _ = HEADS[head]
    config = tiny_encoder_config(family, **changes)
    models = [build_model(config, torch.float32) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        initialize(model, seed)
    assert models[0].num_parameters == config.num_parameters()
    weights = [
        dict(model.own_parameters())[f"head.{'labels' if 'num_labels' in changes else 'spans'}.weight"]
        for model in models
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_count_of_what_is_right():
    model = tiny_encoder(head="classification", num_labels=3).eval()
    batch = lay_out(make_samples(LENGTHS), "packed")
    logits = model.head.label_logits(hidden_states(model, batch), batch)
    right = logits.argmax(1)
    batch["labels"] = torch.tensor([right[0], (right[1] + 1) % 3, -100])
    loss, num_correct = model.head.classify(hidden_states(model, batch), batch)
    assert int(num_correct) == 1
    by_hand = -logits.log_softmax(1)[[0, 1], batch["labels"][:2]].sum()
    torch.testing.assert_close(loss, by_hand)


def test_a_span_is_within_its_own_sequence():
    model = tiny_encoder(head="span").eval().requires_grad_(False)
    batch = lay_out(make_samples(LENGTHS), "packed")
    logits = model.head.span_logits(hidden_states(model, batch), batch)
    assert logits.shape == (3, 20, 2)
    lengths = batch["lengths"].tolist()
    assert [int(row[:, 0].isfinite().sum()) for row in logits] == lengths
    batch["labels"] = torch.stack([row.argmax(0) for row in logits])
    loss, num_correct = model.head.locate(hidden_states(model, batch), batch)
    assert int(num_correct) == 3
    assert float(loss) == pytest.approx(-float(logits.log_softmax(1).amax(1).sum()) / 2, rel=1e-5)


@pytest.mark.parametrize("layout", mostly_slow(reversed(LAYOUTS)))
@pytest.mark.parametrize("family", mostly_slow(FAMILIES))
@pytest.mark.parametrize("head", [*HEADS, "masked"])
def test_the_host_never_waits_for_a_device(family, head, layout):
    """The meta device has shapes and no values, so that whoever asks for one there fails."""
    changes, config, labels = HEADS.get(head, ({}, PretrainingConfig(), torch.tensor([0, 1, -100])))
    config = MaskedLMConfig() if head == "masked" and family in ("roberta", "modernbert") else config
    model = tiny_encoder(family, attention_dropout=0.1, residual_dropout=0.2, **changes).train().to("meta")
    model.tie()
    batch = to_device({**lay_out(make_samples(LENGTHS), layout), "labels": labels}, torch.device("meta"))
    sums = build_objective(config).sums(model.head, hidden_states(model, batch), batch)
    sum(sums.values()).backward()
    assert all(parameter.grad.is_meta for _, parameter in model.named_parameters() if parameter.grad is not None)
