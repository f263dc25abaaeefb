"""The architecture of a run that starts from given weights."""

from pathlib import Path

import pytest
from tiny_runs import RECIPE

from hornbook.config import load_recipe
from hornbook.errors import UserError
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train
from hornbook.run.start_recipe import start_recipe

BARE = "\n".join(["[data]", "synthetic = true", "[training]", "steps = 2"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InitFrom:
    """A run of one step with 2 layers of width 32 and a dropout of 0.1."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "tiny.toml").write_text(RECIPE)
    resolved = load_recipe(str(folder / "tiny.toml"), ["--training.steps=1"])
    train(resolved, output=folder / "run", device="cpu", threads=1)
    return InitFrom(source=str(folder / "run"))


def written(folder: Path, text: str) -> str:
    path = folder / "my.toml"
    path.write_text(text)
    return str(path)


def test_a_recipe_that_says_nothing_takes_the_whole_model(source, tmp_path):
    resolved = start_recipe(written(tmp_path, BARE), output=tmp_path / "run", init_from=source)
    assert resolved.recipe.model == load_recipe(f"{source.source}/recipe.toml").recipe.model
    assert resolved.notes == ()
    summary = train(resolved, output=tmp_path / "run", device="cpu", threads=1, init_from=source)
    assert summary["step"] == 2


def test_the_file_gives_way_with_a_note_and_keeps_its_dropout(source, tmp_path):
    text = f"{BARE}\n[model]\nnum_layers = 12\nnum_heads = 2\nresidual_dropout = 0.3\nfeed_forward_size = 128\n"
    resolved = start_recipe(written(tmp_path, text), output=tmp_path / "run", init_from=source)
    model = resolved.recipe.model
    assert (model.num_layers, model.residual_dropout, model.embedding_dropout) == (2, 0.3, 0.1)
    (note,) = resolved.notes
    assert note.endswith("not of the recipe: num_layers 2 instead of 12")


def test_an_option_that_contradicts_is_refused_in_one_line(source, tmp_path):
    overrides = [
        "--model.num-layers=3",
        "--model.hidden-size=32",
        "--model.activation=relu",
        "--model.residual-dropout=0",
    ]
    with pytest.raises(UserError) as caught:
        start_recipe(written(tmp_path, BARE), overrides, output=tmp_path / "run", init_from=source)
    assert '`model.num_layers=3` (there: 2), `model.activation="relu"` (there: "gelu_tanh")' in str(caught.value)
    assert "hidden" not in str(caught.value) and "dropout" not in str(caught.value)


def test_a_vocabulary_of_none_is_that_of_the_weights(source, tmp_path):
    resolved = start_recipe(
        written(tmp_path, BARE), ["--model.vocab-size=none"], output=tmp_path / "r", init_from=source
    )
    assert resolved.recipe.model.vocab_size == 70


def test_a_family_of_the_file_gives_way_too(source, tmp_path):
    text = f'{BARE}\n[model]\nfamily = "bert"\nhead_transform = false\n'
    resolved = start_recipe(written(tmp_path, text), output=tmp_path / "run", init_from=source)
    assert resolved.recipe.model.family == "gpt"
    assert 'family "gpt" instead of "bert"' in resolved.notes[0]


def test_a_run_that_has_begun_does_not_need_the_source(source, tmp_path):
    reference, gone = written(tmp_path, BARE), InitFrom(source=str(tmp_path / "gone"))
    Path(source.source).rename(gone.source)
    try:
        first = start_recipe(reference, output=tmp_path / "run", init_from=gone)
        train(first, output=tmp_path / "run", device="cpu", threads=1, init_from=gone)
    finally:
        Path(gone.source).rename(source.source)
    again = start_recipe(reference, output=tmp_path / "run", init_from=gone)
    assert again.recipe.model == first.recipe.model
    assert train(again, output=tmp_path / "run", device="cpu", threads=1, init_from=gone)["step"] == 2
