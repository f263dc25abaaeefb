"""The operations that a model's sizes promise are those of its matrices."""

import math
import time

import pytest
import torch
from tiny import tiny_config
from tiny_encoders import FAMILIES, tiny_encoder_config

from hornbook.config import TransformerConfig, load_recipe
from hornbook.config.recipe_files import bundled_recipes
from hornbook.model import build_model

TABLES = ("embedding.", "head.table")


def weights_of_matrices(config: TransformerConfig, part: str) -> int:
    """Weights in the model itself: parameters with two axes or more, without stacked biases and norms."""
    with torch.device("meta"):
        model = build_model(config, torch.float32)
    return sum(
        model.logical(name, parameter).numel()
        for name, parameter in model.own_parameters()
        if name.startswith(part) and name.endswith("weight") and parameter.dim() > 1
    )


CONFIGS = {
    "gpt": tiny_config(),
    "gpt with odd sizes": tiny_config(num_layers=3, head_size=5, feed_forward_size=40),
    **{family: tiny_encoder_config(family) for family in FAMILIES},
    **{f"{family} without extras": tiny_encoder_config(family, head_size=5, qkv_bias=False) for family in FAMILIES},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_operations_are_six_for_each_weight_of_a_matrix_and_attention(name: str) -> None:
    config = CONFIGS[name]
    blocks = weights_of_matrices(config, "blocks.")
    attention = 12 * config.num_layers * config.num_heads * config.effective_head_size
    assert blocks > 0
    assert config.flops_per_token(0, scored=0.0) == 6 * blocks
    assert config.flops_per_token(9, scored=0.0) - config.flops_per_token(0, scored=0.0) == 9 * attention
    table = config.vocab_size * config.hidden_size
    head = config.flops_per_token(9) - config.flops_per_token(9, scored=0.0)
    transform = weights_of_matrices(config, "head.transform")
    assert head == 6 * (table + transform)
    assert (transform == 0) == name.startswith("gpt")


def test_gpt2_small_has_the_operations_of_the_literature() -> None:
    """PaLM's formula by hand: 6 · (12 · 12 · 768² + 50257 · 768) + 12 · 12 · 768 · 1024."""
    model = load_recipe("gpt2-small", ["--model.vocab-size=50257"], require_data=False).recipe.model
    assert model.flops_per_token(1024) == 6 * (12 * 12 * 768**2 + 50257 * 768) + 12 * 12 * 768 * 1024


@pytest.mark.parametrize(("recipe", "share"), [("demo", 1.0), ("bert-tiny", 0.15)])
def test_objectives_say_for_which_share_of_the_tokens_there_are_logits(recipe: str, share: float) -> None:
    assert load_recipe(recipe, [], require_data=False).recipe.objective.scored_share == share


@pytest.mark.parametrize("name", bundled_recipes())
def test_shapes_are_those_of_the_model_of_every_bundled_recipe(name: str) -> None:
    config = load_recipe(name, ["--model.vocab_size=70"], require_data=False).recipe.model
    with torch.device("meta"):
        model = build_model(config, torch.float32)
    found = {name: model.logical_shape(name, parameter) for name, parameter in model.own_parameters()}
    assert dict(config.shapes()) == found
    assert config.num_parameters() == sum(map(math.prod, found.values()))


def test_parameters_of_ten_thousand_layers_are_counted_at_once() -> None:
    """A slip in a number is refused by the size of the model, which is not to take minutes to count."""
    config, began = tiny_config(num_layers=10**4), time.process_time()
    assert config.num_parameters() > 10**7
    assert time.process_time() - began < 1


@pytest.mark.parametrize("head", ["classification", "span"])
def test_shapes_are_those_of_heads_of_labeled_data(head: str) -> None:
    config = tiny_encoder_config("bert", head=head, num_labels=3)
    with torch.device("meta"):
        model = build_model(config, torch.float32)
    assert dict(config.shapes()) == {name: model.logical_shape(name, p) for name, p in model.own_parameters()}
