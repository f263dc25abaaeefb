import pytest

from hornbook.config.overrides import read_overrides, split_overrides
from hornbook.errors import RecipeError


@pytest.mark.parametrize(
    ("words", "overrides", "rest"),
    [
        (["a.toml", "--optimizer.learning-rate", "3e-4"], ["--optimizer.learning_rate=3e-4"], ["a.toml"]),
        (["--optimizer.learning_rate=3e-4", "a.toml"], ["--optimizer.learning_rate=3e-4"], ["a.toml"]),
        (["--data.synthetic", "a.toml"], ["--data.synthetic"], ["a.toml"]),
        (["--data.synthetic", "true", "a.toml"], ["--data.synthetic=true"], ["a.toml"]),
        (["--data.synthetic=false", "--output", "o"], ["--data.synthetic=false"], ["--output", "o"]),
        (["--optimizer.learning-rate", "-1"], ["--optimizer.learning_rate=-1"], []),
        (["--optimizer.learning-rate", "--json"], ["--optimizer.learning_rate"], ["--json"]),
        (["--data.train=--odd", "--data.validation=a=b"], ["--data.train=--odd", "--data.validation=a=b"], []),
        (["--name", "x", "--names", "y"], ["--name=x"], ["--names", "y"]),
        (["--no.such", "1", "--no-dot", "2"], ["--no.such=1"], ["--no-dot", "2"]),
        (["--prompt", "a.b", "--", "--data.train", "x"], [], ["--prompt", "a.b", "--", "--data.train", "x"]),
        (["--data.train", "a\nb"], ["--data.train=a\nb"], []),
        ([], [], []),
    ],
)
def test_recipe_options_are_told_apart(words, overrides, rest):
    assert split_overrides(words) == (overrides, rest)
    assert split_overrides(overrides) == (overrides, [])


def test_leaves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = read_overrides(["--training.steps", "5", "--data.synthetic", "--training.steps", "6", "--name=a"])
    assert {key: leaf.value for key, leaf in tree.items()} == {
        ("training", "steps"): "6",
        ("data", "synthetic"): None,
        ("", "name"): "a",
    }
    assert all(leaf.is_text and leaf.source == "command line" and leaf.folder == tmp_path for leaf in tree.values())


def test_other_words_are_no_overrides():
    with pytest.raises(RecipeError, match=r'^"--output" \(command line\): expected a recipe option'):
        read_overrides(["--output", "x"])
