"""The whole model: the tied table, the padded vocabulary, parameters by name and number, activations and dtypes."""

import math

import pytest
import torch
from tiny import hidden_states, random_batch, randomize, tiny_config, tiny_model
from torch.nn import functional

from hornbook.errors import UserError
from hornbook.model import LanguageModel, build_model
from hornbook.objective import CausalLM
from hornbook.samples.windows import NOT_SCORED


def table_gradients(model: LanguageModel, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
    model.head.cross_entropy(hidden_states(model, batch), batch["targets"]).backward()
    return model.embedding.tokens.grad, model.head.table.grad


def test_folded_gradient_is_that_of_one_tied_parameter():
    model = tiny_model()
    randomize(model)
    batch = random_batch(2, 9, unscored=0.2)
    lookup, logits = (gradient.clone() for gradient in table_gradients(model, batch))
    model.fold_tied_gradients()
    assert torch.equal(model.embedding.tokens.grad, lookup + logits)
    assert model.head.table.grad is None

    tied = tiny_model()
    randomize(tied)
    tied.head.table = tied.embedding.tokens
    x_ND = tied.head.norm(hidden_states(tied, batch)).flatten(0, 1)
    scores = (x_ND @ tied.embedding.tokens.t())[:, :70]
    functional.cross_entropy(scores, batch["targets"].flatten(), reduction="sum").backward()
    torch.testing.assert_close(model.embedding.tokens.grad, tied.embedding.tokens.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_joined_additions_and_norms_are_those_of_single_blocks(training):
    """On a GPU, one kernel computes the last addition of a block and the next norm; in training also the head's."""
    model = tiny_model(residual_dropout=0.1).train(training)
    randomize(model)
    batch, found = random_batch(2, 9), []

    def use(head, x_BTD, batch):
        loss = head.cross_entropy(x_BTD, batch["targets"])
        loss.backward()
        found.append([loss, x_BTD, *(parameter.grad for _, parameter in model.named_parameters())])
        model.zero_grad(set_to_none=True)

    model(use, batch)
    x_BTD = model.embedding(batch["tokens"], batch["positions"], batch["keys"])
    model._forward_joined(use, x_BTD, model.make_context(batch), batch)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert model.head._known is None


def test_two_accumulators_distinguish_the_two_uses():
    """Tokens that are not looked up have no gradient from the look-up, but one from the logits."""
    model = tiny_model()
    batch = random_batch(1, 6)
    batch["tokens"] %= 10
    lookup, logits = table_gradients(model, batch)
    assert (lookup[10:] == 0).all()
    assert (logits[10:70] != 0).any(1).all()


def test_folding_without_gradients_or_with_one_of_them():
    model = tiny_model()
    model.fold_tied_gradients()
    assert model.embedding.tokens.grad is None
    for parameter in (model.embedding.tokens, model.head.table):
        model.zero_grad(set_to_none=True)
        parameter.grad = torch.ones_like(parameter)
        model.fold_tied_gradients()
        assert (model.embedding.tokens.grad == 1).all()
        assert model.head.table.grad is None


def test_storage_is_shared_also_after_a_move_and_a_new_tie():
    model = tiny_model()
    assert model.head.table.data_ptr() == model.embedding.tokens.data_ptr()
    model = model.to(torch.float64)  # copies each parameter, as a move to another device does
    model.tie()
    assert model.head.table.data_ptr() == model.embedding.tokens.data_ptr()
    with torch.no_grad():
        model.embedding.tokens[3, 2] = 42.0
    assert model.head.table[3, 2] == 42.0
    assert "head.table" in dict(model.named_parameters()), "zero_grad has to see it"


def test_padding_gets_neither_probability_nor_gradient():
    model = tiny_model()
    randomize(model)
    with torch.no_grad():
        model.embedding.tokens[70:] = 1e3  # would swallow all probability if it counted
    batch = random_batch(2, 8)
    x_BTD = hidden_states(model, batch)
    logits = model.head.logits(x_BTD)
    assert logits.shape == (2, 8, 70)
    expected = functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="none")
    torch.testing.assert_close(model.head.token_losses(x_BTD, batch["targets"]).flatten(), expected.detach())
    for gradient in table_gradients(model, batch):
        assert (gradient[70:] == 0).all()


def test_token_losses_sum_to_the_loss_and_leave_out_what_is_not_scored():
    model = tiny_model()
    batch = random_batch(3, 8, unscored=0.5)
    x_BTD = hidden_states(model, batch)
    losses = model.head.token_losses(x_BTD, batch["targets"])
    assert losses.shape == batch["targets"].shape
    assert (losses[batch["targets"] == NOT_SCORED] == 0).all()
    torch.testing.assert_close(losses.sum(), model.head.cross_entropy(x_BTD, batch["targets"]).detach())


def test_a_fresh_model_knows_nothing():
    """The first loss is the logarithm of the vocabulary."""
    batch = random_batch(8, 24)
    model = tiny_model()
    mean = model.head.token_losses(hidden_states(model, batch), batch["targets"]).mean()
    assert float(mean) == pytest.approx(math.log(70), rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [{}, {"vocab_size": 128}, {"head_size": 5}, {"feed_forward_size": 24}, {"num_layers": 5, "max_positions": 7}],
)
def test_number_of_parameters_is_the_formula_of_the_recipe(changes):
    model = tiny_model(**changes)
    by_hand = sum(len(model.logical(name, p)) * p[0].numel() for name, p in model.own_parameters())
    assert model.num_parameters == by_hand == tiny_config(**changes).num_parameters()


def test_gpt2_small_has_124_million_parameters():
    config = tiny_config(num_layers=12, hidden_size=768, num_heads=12, vocab_size=50257, max_positions=1024)
    with torch.device("meta"):
        model = build_model(config, torch.float32)
    assert model.num_parameters == config.num_parameters() == 124_439_808


def test_own_parameters_are_all_but_the_second_view_of_the_table():
    model = tiny_model()
    names = [name for name, _ in model.own_parameters()]
    assert set(dict(model.named_parameters())) - set(names) == {"head.table"}
    assert len({parameter.data_ptr() for _, parameter in model.own_parameters()}) == len(names)
    assert [model.logical(name, p).shape[0] for name, p in model.own_parameters() if name == "embedding.tokens"] == [70]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu_squared", "silu"])
def test_activations_are_what_their_names_say(activation):
    formulas = {
        "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: max(x, 0.0),
        "relu_squared": lambda x: max(x, 0.0) ** 2,
        "silu": lambda x: x / (1 + math.exp(-x)),
    }
    feed_forward = tiny_model(activation=activation, feed_forward_size=16).blocks[0].feed_forward
    for layer in (feed_forward.up, feed_forward.down):
        layer.weight.data = torch.eye(16)
    x = torch.linspace(-3, 3, 16).view(1, 1, 16)
    expected = torch.tensor([formulas[activation](value) for value in x.flatten().tolist()])
    torch.testing.assert_close(feed_forward(x).flatten(), expected, atol=1e-5, rtol=1e-5)


def test_compute_dtype_is_that_of_all_activations_and_of_nothing_else():
    model = tiny_model(compute_dtype=torch.bfloat16, residual_dropout=0.1, attention_dropout=0.1, embedding_dropout=0.1)
    dtypes = {}
    modules = {name: module for name, module in model.named_modules() if name not in ("", "head")}
    for name, module in modules.items():
        module.register_forward_hook(lambda _module, _args, output, name=name: dtypes.update({name: output.dtype}))
    batch = random_batch(2, 8)
    loss = model(CausalLM().sums, batch)["causal_lm"]
    loss.backward()
    assert len(dtypes) > 10
    assert set(dtypes.values()) == {torch.bfloat16}
    assert loss.dtype == model.head.logits(hidden_states(model, batch)).dtype == torch.float32
    assert {p.dtype for p in model.parameters()} | {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_positions_come_from_the_batch():
    model = tiny_model()
    batch = random_batch(1, 6)
    moved = {**batch, "positions": batch["positions"] + 3}
    expected = hidden_states(model, moved)
    assert not torch.allclose(hidden_states(model, batch), expected)
    with torch.no_grad():
        model.embedding.positions[:6] = model.embedding.positions[3:9].clone()
    assert torch.equal(hidden_states(model, batch), expected)


def test_an_unknown_section_is_refused():
    with pytest.raises(UserError, match="there is no model for dict"):
        build_model({}, torch.float32)
