"""The formulas of what ranks send, by hand; tests/measure/test_scaling.py holds them against what is sent."""

import pytest
from full_loads import load_of

from hornbook.config import load_recipe
from hornbook.config.communication import Load, bytes_sent

GPT2 = ["--model.vocab_size=50257", "--data.sequence_length=1024", "--training.global_batch_size=32"]
ROWS = 50304
NUMBERS = 124_439_808 + (ROWS - 50257) * 768


def sent(num_ranks, rank=0, *options):
    words = [*GPT2, "--training.micro_batch_size=2", *options]
    recipe = load_recipe("gpt2-small", words, require_data=False).recipe
    return bytes_sent(recipe, num_ranks, rank, load_of(recipe, num_ranks, itemsize=2))


def test_one_rank_sends_nothing():
    assert sent(1) == {}


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_replicas_send_their_gradients_around_a_ring(num_ranks):
    assert sent(num_ranks) == {"all_reduce": 2 * (num_ranks - 1) / num_ranks * 4 * NUMBERS}


def test_shards_send_weights_twice_and_gradients_once_a_micro_batch():
    """The head has a second table."""
    one = 3 * (NUMBERS + ROWS * 768)  # 3/4 of the numbers, 4 bytes each
    shard = "--parallel.data_parallel=shard"
    assert sent(4, 0, shard) == {"all_gather": 2 * 4 * one, "reduce_scatter": 4 * one}
    assert sent(4, 0, shard, "--parallel.sum_gradients=step") == {"all_gather": 2 * 4 * one, "reduce_scatter": one}


def test_layers_send_activations_in_sixteen_micro_batches():
    """Twice for attention and feed-forward of 12 layers; the embedding's sum is fp32; three numbers a loss."""
    tokens = 2 * 1024
    numbers = 12 * 2 * 2 * tokens * 768 * 2 + tokens * 768 * 4 + tokens * (768 * 2 + 3 * 4)
    assert sent(2, 1, "--parallel.tensor_parallel=2") == {"all_reduce": 16 * numbers}


def test_stages_send_hidden_states_and_a_table():
    wire, table = 16 * 2 * 1024 * 768 * 2, ROWS * 768 * 4
    found = [sent(4, rank, "--parallel.pipeline_parallel=4") for rank in range(4)]
    assert found == [{"send": number} for number in (wire + table, 2 * wire, 2 * wire, wire + table)]


def test_the_formula_knows_no_model_of_ones_own():
    recipe = load_recipe("gpt2-small", GPT2, require_data=False).recipe
    own = type("Own", (type(recipe.model),), {"description": None})
    object.__setattr__(recipe, "model", own())
    assert bytes_sent(recipe, 2, 0, Load(num_micro_batches=1, tokens=1, scored=1, itemsize=4)) == {}
