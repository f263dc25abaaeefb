import json
from dataclasses import replace

import pytest

from hornbook.config import (
    AdamWConfig,
    Change,
    ConstantConfig,
    DataConfig,
    GPTConfig,
    LinearConfig,
    Recipe,
    TrainingConfig,
    changed_keys,
    load_recipe,
    recipe_from_dict,
    recipe_to_dict,
    recipe_to_toml,
)
from hornbook.config.options import show
from hornbook.errors import RecipeError

RECIPE = """# mine
[model]
num_layers = 2
hidden_size = 8
num_heads = 2

[data]
train = "corpus/train"

[training]
steps = 1e2

[schedule]
name = "cosine"
final_fraction = 0.1
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "mine.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return "recipes/mine.toml"


def problems(reference, *overrides):
    with pytest.raises(RecipeError) as caught:
        load_recipe(reference, overrides)
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def write(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    return str(path)


def test_defaults_recipe_and_command_line_in_one_tree(recipe, tmp_path):
    resolved = load_recipe(recipe, ["--optimizer.learning-rate", "1e-3", "--training.seed=7"])
    assert resolved.recipe.model == GPTConfig(num_layers=2, hidden_size=8, num_heads=2)
    assert resolved.recipe.optimizer == AdamWConfig(learning_rate=1e-3)
    assert resolved.recipe.training == TrainingConfig(steps=100, seed=7)
    assert type(resolved.recipe.training.steps) is int
    assert resolved.recipe.name == "mine"
    assert str(resolved.path) == "recipes/mine.toml"
    sources = resolved.sources
    assert sources["name"] == "name of the file"
    assert sources["model.num_layers"] == "recipes/mine.toml:3"
    assert sources["model.activation"] == "default"
    assert sources["optimizer.learning_rate"] == "command line"


def test_every_value_has_a_source(recipe):
    resolved = load_recipe(recipe)
    nested = recipe_to_dict(resolved.recipe)
    keys = {f"{name}.{key}" for name, table in nested.items() if isinstance(table, dict) for key in table}
    assert set(resolved.sources) == keys | {"name"}


def test_relative_paths(recipe, tmp_path):
    data = load_recipe(recipe, ["--data.validation", "corpus/validation"]).recipe.data
    assert data.train == (str(tmp_path / "recipes" / "corpus" / "train"),)
    assert data.validation == str(tmp_path / "corpus" / "validation")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["--data.document-mask"], True),
        (["--data.document-mask", "true"], True),
        (["--data.document_mask=FALSE"], False),
        (["--data.document-mask", "--data.document-mask", "false"], False),
    ],
)
def test_booleans_on_the_command_line(recipe, overrides, expected):
    assert load_recipe(recipe, overrides).recipe.data.document_mask is expected


def test_none_on_the_command_line_and_in_a_file(recipe, tmp_path):
    assert load_recipe(recipe, ["--optimizer.clip-norm", "none"]).recipe.optimizer.clip_norm is None
    text = RECIPE + '[optimizer]\nclip_norm = "none"\n'
    assert load_recipe(write(tmp_path, text)).recipe.optimizer.clip_norm is None


def test_an_option_in_a_file_does_not_apply_to_the_tag_beside_it(tmp_path):
    path = write(tmp_path, RECIPE.replace('"cosine"', '"constant"'))
    assert problems(path) == [
        f'schedule.final_fraction ({path}:15): applies only to schedule.name = "linear", "cosine", '
        '"warmup_stable_decay" or "polynomial", not "constant"; remove it or change schedule.name'
    ]


def test_a_tag_on_the_command_line_drops_the_recipes_options_of_others(recipe):
    resolved = load_recipe(recipe, ["--schedule.name", "constant"])
    assert resolved.recipe.schedule == ConstantConfig()
    expected = "command line, in place of schedule.final_fraction (recipes/mine.toml:15)"
    assert resolved.sources["schedule.name"] == expected
    (problem,) = problems(recipe, "--schedule.name", "constant", "--schedule.final-fraction", "0.2")
    assert problem.startswith("schedule.final_fraction (command line): applies only to schedule.name = ")


def test_a_misspelt_key_is_not_dropped_with_them(tmp_path):
    path = write(tmp_path, RECIPE.replace("final_fraction", "final_fractoin"))
    (problem,) = problems(path, "--schedule.name", "constant")
    assert "unknown key" in problem


def test_the_length_on_the_command_line_replaces_the_recipes(recipe):
    resolved = load_recipe(recipe, ["--training.tokens", "1e6"])
    assert resolved.recipe.training == TrainingConfig(tokens=1_000_000)
    assert resolved.sources["training.tokens"] == "command line, in place of training.steps (recipes/mine.toml:11)"
    assert resolved.sources["training.steps"] == "default"


def test_two_lengths_on_the_command_line(recipe):
    (problem,) = problems(recipe, "--training.tokens", "1e6", "--training.epochs", "2")
    assert problem.startswith("training.epochs = 2.0 (command line")
    assert problem.endswith("epochs and tokens exclude each other; keep one")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("--model.num-layer=3", 'model.num_layer (command line): unknown key; did you mean "model.num_layers"?'),
        (
            "--optimizer.num-layers=3",
            'optimizer.num_layers (command line): unknown key; did you mean "model.num_layers"?',
        ),
        ("--optimiser.beta1=0", 'optimiser.beta1 (command line): unknown key; did you mean "optimizer.beta1"?'),
        ("--a.b.c=3", "a.b.c (command line): unknown key"),
        ("--model.=3", 'model. (command line): unknown key; did you mean "model.tied"?'),
        ("--model.num-layers=x", "model.num_layers = x (command line): expected an integer, got a string"),
        ("--model.num-layers", "model.num_layers (command line): expected an integer after the option"),
        ("--model.num-layers=0", "model.num_layers = 0 (command line): must be at least 1 and at most 10000"),
        ("--optimizer.learning-rate=-1", "optimizer.learning_rate = -1 (command line): must be above 0"),
        ("--data.document-mask=1", "data.document_mask = 1 (command line): expected true or false, got a string"),
        (
            "--schedule.name=cosin",
            'schedule.name = cosin (command line): no such choice, expected one of "constant", "linear", "cosine", '
            '"warmup_stable_decay", "polynomial", "natural_exponential", "by_step"; did you mean "cosine"?',
        ),
        (
            "--model.activation=tanh",
            "model.activation = tanh (command line): "
            'expected one of "gelu", "gelu_tanh", "relu", "relu_squared", "silu"; did you mean "gelu_tanh"?',
        ),
        (
            "--model.num-heads=3",
            "model.hidden_size = 8 (recipes/mine.toml:4), model.num_heads = 3 (command line): "
            "hidden_size must be divisible by num_heads; change one of them or set head_size",
        ),
        (
            "--data.sequence-length=2000",
            "data.sequence_length = 2000 (command line), model.max_positions = 1024 (default): "
            "sequence_length must not exceed max_positions; lower it or raise max_positions",
        ),
        (
            "--training.micro-batch-size=6",
            "training.global_batch_size = 8 (default), training.micro_batch_size = 6 (command line): "
            "micro_batch_size must divide global_batch_size; set `training.micro_batch_size=2`",
        ),
        (
            "--training.steps=none",
            "training.steps = none (command line), training.epochs = none (default), training.tokens = none (default): "
            "the run has no length; set exactly one of the three",
        ),
        (
            "--data.train=none",
            "data.train = [] (command line): no training data; set `data.train=PATH`, or use `data.synthetic`",
        ),
        (
            "--data.synthetic",
            "data.synthetic = true (command line, in place of data.train (recipes/mine.toml:8)), "
            "model.vocab_size = none (default): synthetic data needs a vocabulary size; set model.vocab_size",
        ),
        (
            "--name=a/b",
            'name = "a/b" (command line): must be a folder name: '
            "at most 100 letters, digits, dots, dashes and underscores",
        ),
    ],
)
def test_one_line_for_a_mistake(recipe, override, problem):
    assert problems(recipe, override) == [problem]


BAD = """
name = 3
model = "gpt"
lerning_rate = 1
[data]
train = "x"
synthetic = true
[optimizer]
lerning_rate = 3
beta1 = 2
learning_rate = "3e-4"
[schedule]
name = "constant"
final_fraction = 0.1
warmup_steps = true
[optimzer]
[training]
global_batch_size = 7
micro_batch_size = 2
steps = 1
epochs = 2
tokens = []
"""


def test_all_mistakes_at_once(tmp_path):
    path = write(tmp_path, BAD)
    found = [problem.replace(path, "bad.toml") for problem in problems(path)]
    assert found == [
        'model = "gpt" (bad.toml:3): expected a table, [model], got a string',
        'lerning_rate (bad.toml:4): unknown key; did you mean "optimizer.learning_rate"?',
        'optimzer (bad.toml:16): unknown section; did you mean "optimizer"?',
        'training.tokens = [...] (bad.toml:22): expected an integer or "none", got an array',
        'optimizer.lerning_rate (bad.toml:9): unknown key; did you mean "optimizer.learning_rate"?',
        "optimizer.beta1 = 2 (bad.toml:10): must be at least 0 and below 1",
        'optimizer.learning_rate = "3e-4" (bad.toml:11): expected a number, got a string',
        'schedule.final_fraction (bad.toml:14): applies only to schedule.name = "linear", "cosine", '
        '"warmup_stable_decay" or "polynomial", not "constant"; remove it or change schedule.name',
        "schedule.warmup_steps = true (bad.toml:15): expected an integer, got a boolean",
        "name = 3 (bad.toml:2): expected a string, got an integer",
        "training.global_batch_size = 7 (bad.toml:18), training.micro_batch_size = 2 (bad.toml:19): "
        "micro_batch_size must divide global_batch_size; set `training.micro_batch_size=1`",
        "training.steps = 1 (bad.toml:20), training.epochs = 2.0 (bad.toml:21): "
        "steps and epochs exclude each other; keep one",
        f"data.train = {show((f'{tmp_path}/x',))} (bad.toml:6), data.synthetic = true (bad.toml:7): "
        "train and synthetic exclude each other; keep one",
        "data.synthetic = true (bad.toml:7), model.vocab_size = none (default): "
        "synthetic data needs a vocabulary size; set model.vocab_size",
        "data.synthetic = true (bad.toml:7), training.epochs = 2.0 (bad.toml:21): "
        "synthetic data has no epochs; set training.steps or training.tokens instead",
    ]


def test_a_file_of_many_keys_is_refused_as_a_whole(tmp_path):
    path = write(tmp_path, "".join(f"key{number} = 1\n" for number in range(50_000)))
    assert problems(path) == [f"{path}:1: more than 500 keys, so it is probably not a recipe"]


@pytest.mark.parametrize("key", ["x" * 100_000, "a\\nb", " ", "\\u202e"])
def test_unusual_keys_stay_on_one_short_line(tmp_path, key):
    (problem,) = problems(write(tmp_path, f'"{key}" = 1\n' + RECIPE))
    assert problem.isprintable()
    assert len(problem) < 300


def test_the_file_needs_no_name_that_fits(tmp_path):
    path = tmp_path / "my recipe (2).toml"
    path.write_text(RECIPE)
    assert load_recipe(str(path)).recipe.name == "my-recipe-2-"
    (tmp_path / "_.toml").write_text(RECIPE)
    assert load_recipe(str(tmp_path / "_.toml")).recipe.name == "recipe"


def test_printed_recipe_loads_back_equal(recipe, tmp_path):
    resolved = load_recipe(
        recipe, ["--optimizer.clip-norm", "none", "--data.validation", 'odd "name" \\ é\x7f \x9b31m \u202e😀']
    )
    for text in (recipe_to_toml(resolved.recipe), recipe_to_toml(resolved.recipe, resolved.sources)):
        assert load_recipe(write(tmp_path, text)).recipe == resolved.recipe
        assert "\x9b" not in text and "\u202e" not in text, "a terminal would obey them"
    assert "num_layers = 2                          # recipes/mine.toml:3\n" in text
    assert "# head_size is unset                    # default\n" in text
    assert 'clip_norm = "none"                      # command line\n' in text


def test_dictionary_and_back(recipe):
    loaded = load_recipe(recipe).recipe
    assert recipe_from_dict(recipe_to_dict(loaded)) == loaded


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (None, "recipe.json: expected a table of sections, got none"),
        ([], "recipe.json: expected a table of sections, got an array"),
        ({"model": {"family": "gpt", "layers": 2}}, "model.layers (recipe.json): unknown key"),
        ({"model": {"family": "__import__"}}, 'model.family = "__import__" (recipe.json): no such choice'),
        ({"engine": {}}, "engine (recipe.json): unknown section"),
    ],
)
def test_foreign_dictionaries(document, problem):
    if isinstance(document, dict):
        document = {"training": {"steps": 1}, **document}
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(document, "recipe.json")
    assert caught.value.problems[0].startswith(problem)
    assert len(caught.value.problems) == 1


def test_changed_keys():
    old = Recipe(training=TrainingConfig(steps=5), schedule=LinearConfig(final_fraction=0.5))
    new = replace(old, model=GPTConfig(num_layers=3), schedule=ConstantConfig(), data=DataConfig(train=("x",)))
    assert changed_keys(old, old) == []
    assert changed_keys(old, new) == [
        Change("model.num_layers", 12, 3),
        Change("data.train", (), ("x",)),
        Change("schedule.name", "linear", "constant"),
        Change("schedule.final_fraction", 0.5, None),
    ]
    assert changed_keys(new, old)[-1] == Change("schedule.final_fraction", None, 0.5)


def test_recipes_made_in_python_can_be_checked():
    sound = Recipe(training=TrainingConfig(steps=1), data=DataConfig(train=("x",)))
    assert recipe_from_dict(recipe_to_dict(sound)) == sound
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(recipe_to_dict(replace(sound, model=GPTConfig(num_layers=0, num_heads=7))))
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0] == "model.num_layers = 0 (recipe): must be at least 1 and at most 10000"


def test_stores_and_their_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    text = RECIPE.replace('train = "corpus/train"', 'train = ["a", "lang=b"]\nweights = [0.7, 3]')
    path = write(tmp_path / "sub", text)
    data = load_recipe(path).recipe.data
    assert data.train == (f"{tmp_path}/sub/a", f"{tmp_path}/sub/lang=b")
    assert data.weights == (0.7, 3.0)
    data = load_recipe(path, ["--data.train=c,../d", "--data.weights", "1,2"]).recipe.data
    assert (data.train, data.weights) == ((f"{tmp_path}/c", f"{tmp_path.parent}/d"), (1.0, 2.0))
    (problem,) = problems(path, "--data.train=c")
    assert problem.endswith("sub/bad.toml:9): weights needs one value for each store; set as many or remove it")
    assert load_recipe(path, ["--data.train=c", "--data.weights=none"]).recipe.data.weights == ()
    with pytest.raises(RecipeError, match="weights applies only to several stores; remove it"):
        load_recipe(path, ["--data.train=c", "--data.weights", "3"])


@pytest.mark.parametrize(("written", "read"), [("/corpus", ("/corpus",)), (None, ()), (["/a", "/b"], ("/a", "/b"))])
def test_recipes_of_earlier_checkpoints(recipe, written, read):
    document = recipe_to_dict(load_recipe(recipe).recipe)
    document["data"] = {"sequence_length": None, "train": written, "validation": None, "synthetic": False}
    assert recipe_from_dict(json.loads(json.dumps(document))).data.train == read


def test_lists_of_names_and_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    lists = '[evaluation]\ntasks = ["lambada", "wikitext2"]\ntask_data = ["lambada=a.jsonl", "../b"]\n'
    path = write(tmp_path / "sub", RECIPE + lists)
    evaluation = load_recipe(path).recipe.evaluation
    assert evaluation.tasks == ("lambada", "wikitext2")
    assert evaluation.task_data == (f"lambada={tmp_path}/sub/a.jsonl", f"{tmp_path}/b")
    words = ["--evaluation.tasks", "lambada", "--evaluation.task-data=lambada=c"]
    assert load_recipe(path, words).recipe.evaluation.task_data == (f"lambada={tmp_path}/c",)
    without = load_recipe(path, ["--evaluation.tasks=none", "--evaluation.task-data=none"]).recipe.evaluation
    assert (without.tasks, without.task_data) == ((), ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("[evaluation]\ntasks = 3", "expected an array of strings, got an integer"),
        ('[evaluation]\ntasks = ["lambada", 3]', "expected an array of strings, got one with an integer in it"),
        ('[evaluation]\ntask_data = ["lambada=x"]', "add lambada to tasks, or remove its data"),
        ('[checkpoint]\nbest_by = "loss"', 'expected "validation" or TASK/METRIC'),
        ('[checkpoint]\nbest_by = "lambada/last_word_accuracy"', "add lambada to evaluation.tasks"),
    ],
)
def test_tasks_that_do_not_fit(tmp_path, options, message):
    (problem,) = problems(write(tmp_path, f"{RECIPE}{options}\n"))
    assert message in problem
    assert "\n" not in problem
