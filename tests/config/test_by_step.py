import pytest

from hornbook.config import by_step, load_recipe
from hornbook.config.values import Mistake
from hornbook.errors import RecipeError


def test_the_value_of_the_largest_key_that_is_not_above():
    values = by_step.read(["2000=64", " 0 = 1.28e2", "1_000_000=1"])
    assert values == {0: 128.0, 2000: 64.0, 1_000_000: 1.0}
    assert [by_step.at(values, step) for step in (0, 1, 1999, 2000, 2001, 10**9)] == [128, 128, 128, 64, 64, 1]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "no value for the first updates; begin with 0=VALUE"),
        (["5=1"], "no value for the first updates; begin with 0=VALUE"),
        (["0=1", "0=2"], "step 0 has two values; leave one"),
        *(
            (["0=1", entry], f'"{entry}": expected STEP=VALUE with a positive value, as in 2000=0.5')
            for entry in ("7", "7=", "=7", "x=1", "-1=1", "1.5=1", "7=x", "7=0", "7=-1", "7=nan", "7=inf", "7=1=2")
        ),
    ],
)
def test_mistakes_are_named(entries, message):
    with pytest.raises(Mistake) as caught:
        by_step.read(entries)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["--schedule.name=by_step", "--schedule.factors=0=1,9=x"],
            'schedule.factors = ["0=1", "9=x"] (command line): "9=x": expected STEP=VALUE with a positive value, '
            "as in 2000=0.5",
        ),
        (
            ["--precision.loss-scale-by-step=9=1"],
            'precision.loss_scale_by_step = ["9=1"] (command line): no value for the first updates; begin with 0=VALUE',
        ),
        (
            ["--precision.loss-scale-by-step=0=1", "--precision.loss-scale=2"],
            'precision.loss_scale = 2.0 (command line), precision.loss_scale_by_step = ["0=1"] (command line): '
            "give one of them, not both",
        ),
        (
            ["--schedule.warmup-steps=10", "--schedule.warmup-fraction=.1"],
            "schedule.warmup_steps = 10 (command line), schedule.warmup_fraction = 0.1 (command line): "
            "give one of them, not both",
        ),
        (
            ["--schedule.name=polynomial", "--schedule.decay-steps=10", "--schedule.decay-end=20"],
            "schedule.decay_steps = 10 (command line), schedule.decay_end = 20 (command line): "
            "give one of them, not both",
        ),
        (
            ["--schedule.warmup-steps=10", "--schedule.decay-end=10"],
            "schedule.warmup_steps = 10 (command line), schedule.decay_end = 10 (command line): "
            "the decay ends before the warm-up does; give a later decay_end",
        ),
        (
            ["--optimizer.bias-correction=false", "--optimizer.epsilon-before-correction"],
            "optimizer.epsilon_before_correction = true (command line), optimizer.bias_correction = false "
            "(command line): there is no correction to add epsilon before; leave epsilon_before_correction out",
        ),
        (
            ["--evaluation.early-stopping-min-delta=0.1"],
            "evaluation.early_stopping_min_delta = 0.1 (command line), evaluation.early_stopping_patience = none "
            "(default): without a patience nothing is stopped; give early_stopping_patience, too",
        ),
    ],
)
def test_a_recipe_says_what_is_wrong(words, problem, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[data]\ntrain = "x"\n[training]\nsteps = 1\n')
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(recipe), words)
    assert caught.value.problems == [problem]


def test_the_command_line_takes_the_place_of_the_recipes_warmup():
    resolved = load_recipe("gpt2-small", ["--data.train=x", "--schedule.warmup-fraction=0.1"])
    assert (resolved.recipe.schedule.warmup_steps, resolved.recipe.schedule.warmup_fraction) == (0, 0.1)
    assert resolved.sources["schedule.warmup_fraction"].startswith("command line, in place of schedule.warmup_steps")
