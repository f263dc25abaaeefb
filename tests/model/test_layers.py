"""The parts of an embedding and of an output table are choices: positions, norm, tying."""

import math

import pytest
import torch
from tiny import hidden_states, random_batch, randomize, tiny_config

from hornbook.model import LanguageModel, initialize
from hornbook.model.block import PreNormBlock
from hornbook.model.head import CausalHead
from hornbook.model.layers import Embedding, LayerNorm

OPTIONS = {"dropout": 0.0, "std": 0.3, "compute_dtype": torch.float32}
TOKENS = torch.tensor([[3, 1, 4], [1, 5, 9]])
POSITIONS = torch.arange(3).expand(2, 3)


def model_of(embedding: Embedding, **head) -> LanguageModel:
    blocks = [PreNormBlock(tiny_config(), index) for index in range(2)]
    model = LanguageModel(embedding, blocks, CausalHead(16, 70, epsilon=1e-5, **head), max_positions=24)
    initialize(model, 1)
    return model


def test_sinusoidal_positions_are_those_of_the_paper():
    embedding = model_of(Embedding(70, 24, 16, positions="sinusoidal", **OPTIONS)).embedding
    added = (embedding(TOKENS, POSITIONS, TOKENS) - embedding.tokens[TOKENS])[1]
    for position in range(3):
        for pair in range(8):
            angle = position / 10_000 ** (2 * pair / 16)
            by_hand = torch.tensor([math.sin(angle), math.cos(angle)])
            torch.testing.assert_close(added[position, 2 * pair : 2 * pair + 2], by_hand, rtol=1e-5, atol=1e-6)
    assert [name for name, _ in embedding.named_parameters()] == ["tokens"]


def test_without_positions_only_attention_depends_on_the_order():
    embedding = model_of(Embedding(70, 24, 16, positions="none", **OPTIONS)).embedding
    assert torch.equal(embedding(TOKENS, POSITIONS, TOKENS), embedding.tokens[TOKENS])
    assert [name for name, _ in embedding.named_parameters()] == ["tokens"]


def test_a_norm_is_a_choice_of_its_own():
    embedding = model_of(Embedding(70, 24, 16, norm=LayerNorm(16, epsilon=1e-5), **OPTIONS)).embedding
    x = embedding(TOKENS, POSITIONS, TOKENS)
    torch.testing.assert_close(x.mean(-1), torch.zeros(2, 3), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_output_table_of_its_own_has_its_own_numbers_gradient_and_name(is_tied):
    model = model_of(Embedding(70, 24, 16, **OPTIONS), is_tied=is_tied, std=0.5)
    names = [name for name, _ in model.own_parameters()]
    assert ("head.table" in names) is not is_tied
    table, tokens = model.head.table, model.embedding.tokens
    assert (table.data_ptr() == tokens.data_ptr()) is is_tied
    assert not table[70:].any()
    randomize(model)
    batch = random_batch(2, 12)
    model.head.cross_entropy(hidden_states(model, batch), batch["targets"]).backward()
    of_table, of_tokens = table.grad.clone(), tokens.grad.clone()
    model.fold_tied_gradients()
    assert of_table.any() and of_tokens.any()
    assert torch.equal(tokens.grad, of_tokens + of_table if is_tied else of_tokens)
    assert table.grad is None if is_tied else torch.equal(table.grad, of_table)
    expected = sum(len(model.logical(name, p)) * p[0].numel() for name, p in model.own_parameters())
    assert model.num_parameters == expected
    assert model.logical("head.table", table).shape == (70, 16)
