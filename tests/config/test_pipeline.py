"""How layers are split into stages, and micro-batches into rounds."""

from itertools import product

import pytest

from hornbook.config import load_recipe
from hornbook.config.parallel import rank_of, rounds_of, split_layers
from hornbook.errors import RecipeError, UserError

PIPELINE = "--parallel.pipeline-parallel"
LISTED = "--parallel.layers-per-stage"
INTERLEAVED = "--parallel.pipeline-schedule=interleaved"
V_SHAPED = "--parallel.pipeline-schedule=v-shaped"


@pytest.mark.parametrize("num_layers", [2, 3, 5, 8])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("head_cost", [0.0, 0.3, 1.0, 5.4])
def test_no_other_split_has_a_faster_slowest_stage(num_layers, num_stages, head_cost):
    possible = [
        max(*split[:-1], split[-1] + head_cost)
        for split in product(range(num_layers + 1), repeat=num_stages)
        if sum(split) == num_layers and all(split[1:-1])
    ]
    split = split_layers(num_layers, num_stages, head_cost)
    assert sum(split) == num_layers
    assert len(split) == num_stages
    assert all(split[1:-1])
    assert max(*split[:-1], split[-1] + head_cost) == min(possible)


def stages_of(recipe, *words):
    recipe = load_recipe(recipe, list(words), require_data=False).recipe
    return [list(layers) for layers in recipe.parallel.stages(recipe.model, recipe.objective)]


def test_the_head_counts_as_the_layers_that_it_costs():
    """GPT-2's has 38.6 million weights and a layer 7.1; of BERT's tokens, 15% go through it."""
    gpt2 = stages_of("gpt2-small", f"{PIPELINE}=4", "--model.vocab-size=50257")
    assert list(map(len, gpt2)) == [4, 4, 4, 0]
    assert list(map(len, stages_of("bert-base-wikitext2", f"{PIPELINE}=2", "--model.vocab-size=30522"))) == [6, 6]
    assert [layer for layers in gpt2 for layer in layers] == list(range(12))


def test_stages_that_are_listed():
    assert stages_of("gpt2-small", f"{PIPELINE}=2", f"{LISTED}=0,12") == [[], list(range(12))]
    interleaved = stages_of("gpt2-small", f"{PIPELINE}=2", f"{LISTED}=1,2,3,2,3,1", INTERLEAVED)
    assert list(map(len, interleaved)) == [1, 2, 3, 2, 3, 1]
    assert len(stages_of("gpt2-small", f"{PIPELINE}=2", INTERLEAVED)) == 4
    assert stages_of("gpt2-small", f"{PIPELINE}=2", f"{LISTED}=0,6,6,0", V_SHAPED)[::3] == [[], []]
    assert len(stages_of("gpt2-small", f"{PIPELINE}=2", V_SHAPED)) == 4


def test_ranks_of_stages():
    assert [rank_of(stage, 3, "v-shaped") for stage in range(6)] == [0, 1, 2, 2, 1, 0]
    assert [rank_of(stage, 3, "interleaved") for stage in range(9)] == [0, 1, 2] * 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"{PIPELINE}=2", f"{LISTED}=5,6"], "adds up to 11, and the model has 12 layers; change one of them"),
        ([f"{PIPELINE}=2", f"{LISTED}=5,6,1"], "layers_per_stage has 3 values, expected 2, one per stage"),
        (
            [f"{PIPELINE}=2", f"{LISTED}=6,6", INTERLEAVED],
            "layers_per_stage has 2 values, expected 2 x 2 = 4 or another multiple of 2",
        ),
        (
            [f"{PIPELINE}=2", f"{LISTED}=6,6", V_SHAPED],
            "layers_per_stage has 2 values, expected 2 x 2 = 4, one per stage",
        ),
        ([f"{PIPELINE}=2", f"{LISTED}=2,2,2,2,2,2", V_SHAPED], "layers_per_stage has 6 values, expected 2 x 2 = 4"),
        ([f"{PIPELINE}=3", f"{LISTED}=12,0,0"], "only the first and the last stage may have no layers"),
        ([f"{LISTED}=12"], "layers_per_stage applies only to a pipeline; set pipeline_parallel, or remove it"),
        ([f"{PIPELINE}=16"], "a pipeline of 16 stages needs at least 14 layers; add some"),
    ],
)
def test_pipelines_that_a_model_does_not_have_are_refused(words, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("gpt2-small", words, require_data=False)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble", "v-shaped"])
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
@pytest.mark.parametrize("num_micro_batches", [24, 48, 240, 264, 4096 * 3])
def test_rounds_are_bounded_and_large_enough(schedule, num_ranks, num_micro_batches):
    rounds = rounds_of(num_micro_batches, num_ranks, schedule)
    assert sum(rounds) == num_micro_batches
    assert max(rounds) <= 16 * num_ranks
    assert min(rounds) >= min(8 * num_ranks, num_micro_batches)
    assert len(set(rounds)) <= 2


def test_rounds_of_a_number_that_does_not_divide():
    assert rounds_of(70, 2, "1f1b") == [23, 23, 24]
    assert rounds_of(70, 2, "zero-bubble") == [22, 24, 24]


@pytest.mark.parametrize(
    ("num_micro_batches", "schedule", "message"),
    [
        (3, "1f1b", "needs at least 4 micro-batches a step on 4 ranks, but the run has 3"),
        (1, "gpipe", "needs at least 4 micro-batches"),
        (6, "interleaved", "needs a multiple of 4 micro-batches a step on 4 ranks, but the run has 6"),
        (5, "zero-bubble", "needs a multiple of 4"),
    ],
)
def test_too_few_micro_batches_are_refused(num_micro_batches, schedule, message):
    with pytest.raises(UserError, match=message):
        rounds_of(num_micro_batches, 4, schedule)
