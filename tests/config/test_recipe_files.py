import os

import pytest

from hornbook.config import load_recipe
from hornbook.config.options import describe
from hornbook.config.recipe import Recipe, specs
from hornbook.config.recipe_files import (
    LARGEST_FILE,
    SHORT,
    Leaf,
    file_leaves,
    find_recipe,
    merge,
    read_document,
    run_of,
    split_overrides,
)
from hornbook.errors import RecipeError

TEXT = """# comment
name = "x"
data.train = "y"
[model]
 num_layers = 2   # comment
hidden_size=4

[ optimizer ]
name = "adamw"
[schedule]
"""


def refused(path):
    with pytest.raises(RecipeError) as caught:
        read_document(path, "r.toml")
    (problem,) = caught.value.problems
    assert "\n" not in problem
    return problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[model\n", "r.toml:1:7: not TOML: "),
        (b"a = 1\nb = \n", "r.toml:2:5: not TOML: "),
        (b"a = 1\na = 2\n", "r.toml:2:6: not TOML: "),
        (b'a = "x', "r.toml: not TOML: "),
        (b"a = " + b"9" * 5000, "r.toml: not TOML: "),
        (b"a = " + b"[" * 5000, "r.toml: not a recipe: keys, tables or arrays are nested too deeply"),
        (b"a." * 100_000 + b"a = 1", "r.toml: not a recipe: keys, tables or arrays are nested too deeply"),
        (b"# fine\n# \xff\n", "r.toml:2: not UTF-8 at byte 9"),
        (b"a\0b = 1", "r.toml:1:2: not TOML: "),
        (b"#" * (LARGEST_FILE + 1), "r.toml: larger than 1048576 bytes"),
        ("a = 1".encode("utf-16"), "r.toml:1: not UTF-8 at byte 0"),
    ],
)
def test_files_that_are_no_recipes(tmp_path, content, problem):
    path = tmp_path / "r.toml"
    path.write_bytes(content)
    assert refused(path).startswith(problem.removesuffix(" "))


def test_paths_that_are_no_files(tmp_path):
    what = "r.toml: is a folder, neither a recipe file nor a run"
    assert refused(tmp_path) == f"{what}; to train on it: `data.train={str(tmp_path)!r}`"
    for weights in (tmp_path / "checkpoints", tmp_path / "config.json", tmp_path / "state.json"):
        weights.mkdir()
        assert refused(tmp_path) == f"{what}; to start a run from its weights: `init_from={str(tmp_path)!r}`"
        weights.rmdir()
    missing = "r.toml: no such recipe file or run; `hornbook recipes` lists the bundled recipes"
    assert refused(tmp_path / "missing.toml") == missing
    assert refused(tmp_path / ("x" * 5000)).startswith("r.toml: cannot be read: ")
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").startswith("r.toml: is a pipe or a device, which can be read only once")
    assert refused(tmp_path / "a\0b") == missing


def test_what_is_there_but_has_the_name_of_no_bundled_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("[model]\nnum_layers = 1\n")
    with pytest.raises(RecipeError, match=r"no such bundled recipe; if the file mine is a recipe, name it \./mine$"):
        find_recipe("mine")
    assert read_document(find_recipe("./mine"), "r.toml")[0] == {"model": {"num_layers": 1}}
    for folder in ("texts", "gpt2"):
        (tmp_path / folder).mkdir()
    assert "is a folder, neither a recipe file nor a run; to train on it" in refused(find_recipe("texts"))
    with pytest.raises(RecipeError, match="did you mean one of gpt2-small, "):
        find_recipe("gpt2")


def test_a_run_is_found_by_its_folder_and_by_its_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    assert run_of(find_recipe(f"{tmp_path}/recipe.toml")) is None, "a recipe of that name alone"
    (tmp_path / "run.json").write_text("{}")
    for reference in (tmp_path, tmp_path / "recipe.toml"):
        assert run_of(find_recipe(str(reference))) == tmp_path


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xef\xbb\xbf[model]\r\nnum_layers = 1\r\n")
    assert read_document(path, "r.toml")[0] == {"model": {"num_layers": 1}}


def test_leaves_know_their_lines(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(TEXT + "training = { steps = 5 }\n")
    document, text = read_document(path, "r")
    tree = file_leaves(document, text, "r", tmp_path)
    assert {key: leaf.source for key, leaf in tree.items()} == {
        ("", "name"): "r:2",
        ("data", "train"): "r:3",
        ("model", "num_layers"): "r:5",
        ("model", "hidden_size"): "r:6",
        ("optimizer", "name"): "r:9",
        ("schedule", "training"): "r:11",
    }


def test_an_inline_table_has_one_line(tmp_path):
    text = "\nmodel = { num_layers = 2 }\n"
    tree = file_leaves({"model": {"num_layers": 2}}, text, "r", tmp_path)
    assert tree["model", "num_layers"].source == "r:2"


def test_a_dotted_name_at_the_top_is_no_section(tmp_path):
    tree = file_leaves({"model.num_layers": 2}, '"model.num_layers" = 2', "r", tmp_path)
    assert list(tree) == [("", "model.num_layers")]


def test_short_names():
    tree, rest = split_overrides(["--lr", "1e-3", "--batch_size=8", "--steps", "5", "--threads", "2"], taken={"steps"})
    assert {key: leaf.value for key, leaf in tree.items()} == {
        ("optimizer", "learning_rate"): "1e-3",
        ("training", "global_batch_size"): "8",
    }
    assert rest == ["--steps", "5", "--threads", "2"]


def test_short_names_are_options_of_recipes():
    assert all(name in (specs(section) if section else describe(Recipe)) for section, name in SHORT.values())


def options(*words):
    tree, rest = split_overrides(words)
    assert rest == []
    return tree


STEPS, EPOCHS, TRAIN, SYNTHETIC = (
    ("training", "steps"),
    ("training", "epochs"),
    ("data", "train"),
    ("data", "synthetic"),
)


def test_the_command_line_wins():
    merged = merge({STEPS: Leaf(value=5, source="r:1")}, options("--training.steps=6"))
    assert (merged[STEPS].value, merged[STEPS].source) == ("6", "command line")


def test_another_length_takes_the_place_of_the_recipes():
    merged = merge({STEPS: Leaf(value=5, source="r:1")}, options("--training.epochs=2"))
    assert set(merged) == {EPOCHS}
    assert merged[EPOCHS].source == "command line, in place of training.steps (r:1)"


def test_synthetic_data_take_the_place_of_a_store_and_the_reverse():
    assert set(merge({TRAIN: Leaf(value="x", source="r:1")}, options("--data.synthetic"))) == {SYNTHETIC}
    assert set(merge({SYNTHETIC: Leaf(value=True, source="r:1")}, options("--data.train=x"))) == {TRAIN}


@pytest.mark.parametrize("value", ["none", "false"])
def test_unsetting_takes_no_place(value):
    assert set(merge({TRAIN: Leaf(value="x", source="r")}, options(f"--data.synthetic={value}"))) == {
        TRAIN,
        SYNTHETIC,
    }


def test_two_lengths_on_the_command_line_stay_two():
    merged = merge({}, options("--training.steps=1", "--training.epochs=2"))
    assert set(merged) == {STEPS, EPOCHS}


def test_a_name_and_an_exclusive_option_may_drop_the_same_option():
    recipe = {
        ("schedule", "name"): Leaf(value="linear", source="r:1"),
        ("schedule", "decay_end"): Leaf(value=9, source="r:2"),
    }
    overrides = options("--schedule.name=constant", "--schedule.decay-steps=5")
    assert set(merge(recipe, overrides)) == set(overrides)


@pytest.mark.parametrize(
    ("words", "overrides", "rest"),
    [
        (["a.toml", "--optimizer.learning-rate", "3e-4"], {"optimizer.learning_rate": "3e-4"}, ["a.toml"]),
        (["--optimizer.learning_rate=3e-4", "a.toml"], {"optimizer.learning_rate": "3e-4"}, ["a.toml"]),
        (["--data.synthetic", "a.toml"], {"data.synthetic": None}, ["a.toml"]),
        (["--data.synthetic", "true", "a.toml"], {"data.synthetic": "true"}, ["a.toml"]),
        (["--data.synthetic=false", "--output", "o"], {"data.synthetic": "false"}, ["--output", "o"]),
        (["--optimizer.learning-rate", "-1"], {"optimizer.learning_rate": "-1"}, []),
        (["--optimizer.learning-rate", "--json"], {"optimizer.learning_rate": None}, ["--json"]),
        (["--data.train=--odd", "--data.validation=a=b"], {"data.train": "--odd", "data.validation": "a=b"}, []),
        (["--name", "x", "--names", "y"], {"name": "x"}, ["--names", "y"]),
        (["--no.such", "1", "--no-dot", "2"], {"no.such": "1"}, ["--no-dot", "2"]),
        (["--prompt", "a.b", "--", "--data.train", "x"], {}, ["--prompt", "a.b", "--", "--data.train", "x"]),
        (["--data.train", "a\nb"], {"data.train": "a\nb"}, []),
        ([], {}, []),
    ],
)
def test_recipe_options_are_distinguished(words, overrides, rest):
    tree, others = split_overrides(words)
    assert others == rest
    assert {".".join(filter(None, key)): leaf.value for key, leaf in tree.items()} == overrides


def test_the_last_value_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = options("--training.steps", "5", "--data.synthetic", "--training.steps", "6", "--name=a")
    assert {key: leaf.value for key, leaf in tree.items()} == {
        ("training", "steps"): "6",
        ("data", "synthetic"): None,
        ("", "name"): "a",
    }
    assert all(leaf.is_text and leaf.source == "command line" and leaf.folder == tmp_path for leaf in tree.values())


def test_other_words_are_no_overrides():
    with pytest.raises(RecipeError, match=r'^"--output" \(command line\): expected a recipe option'):
        load_recipe("demo", ["--output", "x"])


@pytest.mark.parametrize(
    ("text", "overrides", "size", "is_noted"),
    [
        ("micro_batch_size = 64\nglobal_batch_size = 64", ["--training.global-batch-size=16"], 16, True),
        ("", ["--training.global-batch-size=2"], 2, True),
        ("micro_batch_size = 4\nglobal_batch_size = 64", ["--training.global-batch-size=16"], 4, False),
    ],
)
def test_a_smaller_batch_of_the_command_line_lowers_the_micro_batch(tmp_path, text, overrides, size, is_noted):
    (tmp_path / "my.toml").write_text(f"[training]\nsteps = 1\n{text}")
    resolved = load_recipe(str(tmp_path / "my.toml"), overrides, require_data=False)
    assert resolved.recipe.training.micro_batch_size == size
    assert [note.startswith(f"training.micro_batch_size is {size}") for note in resolved.notes] == [True] * is_noted


def test_a_micro_batch_of_the_command_line_is_not_lowered(tmp_path):
    (tmp_path / "my.toml").write_text("[training]\nsteps = 1\n")
    with pytest.raises(RecipeError, match="micro_batch_size must divide global_batch_size"):
        load_recipe(
            str(tmp_path / "my.toml"),
            ["--training.global-batch-size=2", "--training.micro-batch-size=4"],
            require_data=False,
        )


def test_a_recipe_starts_from_another_and_says_so(tmp_path, monkeypatch):
    """Its own values win; paths stay relative to the file that names them; the name is not inherited."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.toml").write_text('from = "demo"\nname = "base"\n[data]\ntrain = "corpus"\n')
    (tmp_path / "mine.toml").write_text('from = "sub/base.toml"\n[training]\nepochs = 2\n')
    resolved = load_recipe("mine.toml", ["--model.num-layers=3"])
    recipe, demo = resolved.recipe, load_recipe("demo", require_data=False).recipe
    assert (recipe.name, recipe.data.train) == ("mine", (str(tmp_path / "sub" / "corpus"),))
    assert (recipe.model.num_layers, recipe.training.epochs, recipe.training.steps) == (3, 2, None)
    assert (recipe.optimizer, recipe.schedule) == (demo.optimizer, demo.schedule)
    assert resolved.sources["data.train"] == "sub/base.toml:4"
    assert resolved.sources["training.epochs"] == "mine.toml:3, in place of training.steps (demo:17)"
    assert resolved.sources["optimizer.learning_rate"] == "demo:23"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("from = 3", "from = 3 (r.toml:1): expected the name of a bundled recipe, or the path of a recipe file"),
        ('from = "r.toml"', 'from = "r.toml" (r.toml:1): the recipe starts from itself; remove one `from`'),
        ('from = "b.toml"', 'from = "r.toml" (b.toml:1): the recipe starts from itself; remove one `from`'),
        (
            'from = "demoo"',
            'from = "demoo" (r.toml:1): recipe "demoo": no such bundled recipe; did you mean "demo"?',
        ),
        ('from = "./c.toml"', "./c.toml: no such recipe file or run"),
        ('[training]\nfrom = "demo"', "training.from (r.toml:2): unknown key"),
    ],
)
def test_a_recipe_that_starts_from_nothing_is_refused(tmp_path, monkeypatch, text, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.toml").write_text(text)
    (tmp_path / "b.toml").write_text('from = "r.toml"')
    with pytest.raises(RecipeError) as caught:
        load_recipe("r.toml", require_data=False)
    assert caught.value.problems[0].startswith(problem)
