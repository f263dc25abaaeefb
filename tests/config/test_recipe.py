from dataclasses import dataclass

import pytest

from hornbook.config import (
    CausalLMConfig,
    ClassificationConfig,
    MaskedLMConfig,
    PretrainingConfig,
    SpanConfig,
    load_recipe,
    option,
    options,
    register,
)
from hornbook.errors import RecipeError

_MOVES = "phased execution recomputes every layer and offloads everything"
_RESIDENT = 'remove it, or set memory.execution to "resident"'


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
            'precision.loss_scale_by_step = ["9=1"] (command line): step 0 has no value; add 0=VALUE',
        ),
        (
            ["--precision.loss-scale-by-step=0=1", "--precision.loss-scale=2"],
            'precision.loss_scale = 2.0 (command line), precision.loss_scale_by_step = ["0=1"] (command line): '
            "loss_scale and loss_scale_by_step exclude each other; keep one",
        ),
        (
            ["--precision.loss-scale-by-step=0=1", "--precision.loss-scaling=dynamic"],
            'precision.loss_scale_by_step = ["0=1"] (command line), precision.loss_scaling = "dynamic" (command line): '
            'loss_scale_by_step is a static loss scale; remove it, or set loss_scaling = "static"',
        ),
        (
            ["--schedule.warmup-steps=10", "--schedule.warmup-fraction=.1"],
            "schedule.warmup_steps = 10 (command line), schedule.warmup_fraction = 0.1 (command line): "
            "warmup_steps and warmup_fraction exclude each other; keep one",
        ),
        (
            ["--schedule.name=polynomial", "--schedule.decay-steps=10", "--schedule.decay-end=20"],
            "schedule.decay_steps = 10 (command line), schedule.decay_end = 20 (command line): "
            "decay_steps and decay_end exclude each other; keep one",
        ),
        (
            ["--schedule.warmup-steps=10", "--schedule.decay-end=10"],
            "schedule.warmup_steps = 10 (command line), schedule.decay_end = 10 (command line): "
            "the decay must end after the warm-up; raise decay_end or lower warmup_steps",
        ),
        (
            ["--optimizer.bias-correction=false", "--optimizer.epsilon-before-correction"],
            "optimizer.epsilon_before_correction = true (command line), optimizer.bias_correction = false "
            "(command line): epsilon_before_correction requires bias_correction; "
            "remove it or set bias_correction = true",
        ),
        (
            ["--memory.recompute-layers=1"],
            "memory.recompute_layers = [1] (command line), memory.recompute = none (default): recompute_layers has no "
            'effect without recompute; set recompute = "all" or "attention", or remove it',
        ),
        (
            ["--memory.recompute=all", "--memory.recompute-layers=1", "--memory.recompute-budget=2"],
            "memory.recompute_layers = [1] (command line), memory.recompute_budget = 2.0 (command line): "
            "recompute_layers and recompute_budget both choose the layers; keep one",
        ),
        (
            ["--memory.recompute=all", "--memory.recompute-layers=3,12"],
            "memory.recompute_layers = [3, 12] (command line), model.num_layers = 12 (default): "
            "layer 12 does not exist; the layers are 0 to 11",
        ),
        *(
            (
                ["--memory.execution=phased", f"--{option}={value}"],
                f'memory.execution = "phased" (command line), {option} = {shown} (command line): {reason}',
            )
            for option, value, shown, reason in [
                ("memory.recompute", "all", '"all"', f"{_MOVES}; remove recompute"),
                ("memory.offload_activations", "true", "true", f"{_MOVES}; remove offload_activations"),
                ("memory.offload_optimizer", "true", "true", f"{_MOVES}; remove offload_optimizer"),
                ("training.compile", "blocks", '"blocks"', f"compile takes layers that stay in memory; {_RESIDENT}"),
                ("parallel.pipeline_parallel", "2", "2", f"pipeline_parallel spreads layers over ranks; {_RESIDENT}"),
                ("parallel.tensor_parallel", "2", "2", f"tensor_parallel cuts layers that stay in memory; {_RESIDENT}"),
                ("checkpoint.background", "true", "true", f"background copies all state into memory; {_RESIDENT}"),
                ("sparsity.linears", "blocks.*", '["blocks.*"]', f"linears keeps blocks in memory; {_RESIDENT}"),
            ]
        ),
        (
            ["--memory.scratch=/big"],
            'memory.scratch = "/big" (command line), memory.execution = "resident" (default): scratch has no effect '
            'without phased execution; set execution = "phased", or remove it',
        ),
        (
            ["--evaluation.early-stopping-min-delta=0.1"],
            "evaluation.early_stopping_min_delta = 0.1 (command line), evaluation.early_stopping_patience = none "
            "(default): early_stopping_min_delta applies only with early_stopping_patience; "
            "set that, or remove it",
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


def registered(monkeypatch, base):
    """Register a subclass under a name of its own."""

    @dataclass(frozen=True, kw_only=True)
    class MyObjectiveConfig(base):
        """A third party's objective."""

        name: str = option("my_own", help="what is learned")

    monkeypatch.setitem(options._CHOICES, "objective", dict(options._CHOICES["objective"]))
    register("objective", "my_own", MyObjectiveConfig)
    return "--objective.name=my_own"


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (MaskedLMConfig, ["--model.family=bert", "--data.tokenizer=folder"]),
        (MaskedLMConfig, ["--model.family=roberta"]),
        (PretrainingConfig, ["--model.family=bert", "--data.tokenizer=folder"]),
        (ClassificationConfig, ["--model.family=bert", "--model.head=classification", "--model.num-labels=3"]),
        (SpanConfig, ["--model.family=bert", "--model.head=span", "--data.tokenizer=folder"]),
        (CausalLMConfig, []),
    ],
)
def test_a_registered_objective_is_of_its_bases_kind(monkeypatch, plain, base, words):
    named = registered(monkeypatch, base)
    assert load_recipe(plain, [named, *words]).recipe.objective.name == "my_own"


@pytest.mark.parametrize(
    ("base", "words", "problem"),
    [
        (MaskedLMConfig, [], 'my_own needs an encoder; set model.family to one of "bert", "roberta", "groupbert", '),
        (CausalLMConfig, ["--model.family=bert"], 'encoders cannot learn "causal_lm"; set objective.name to "mlm"'),
        (CausalLMConfig, ["--data.tokenizer=folder"], "tokenizer applies only to instances and labeled"),
        (PretrainingConfig, ["--model.family=roberta"], "RoBERTa has no next-sentence head; set objective"),
        (
            SpanConfig,
            ["--model.family=bert", "--model.num-labels=3"],
            'only to objective.name = "classification"',
        ),
        (
            ClassificationConfig,
            ["--model.family=bert", "--model.head=span"],
            'only to objective.name = "span"',
        ),
        (ClassificationConfig, ["--model.family=bert", "--objective.text=label"], "text and label must be different"),
    ],
)
def test_and_so_are_its_mistakes(monkeypatch, plain, base, words, problem):
    named = registered(monkeypatch, base)
    with pytest.raises(RecipeError, match=problem):
        load_recipe(plain, [named, *words])


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text('[data]\ntrain = "x"\n[training]\nsteps = 1\n')
    return str(path)
