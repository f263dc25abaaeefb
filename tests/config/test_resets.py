"""Another objective, optimizer or schedule takes its own defaults, and a note lists what changed."""

from dataclasses import replace

import pytest

from hornbook.__main__ import main
from hornbook.config import AdamWConfig, LambConfig, LinearConfig, load_recipe, recipe_to_toml
from hornbook.config.options import show
from hornbook.config.overrides import override_leaves, override_recipe

RECIPE = """[training]
steps = 3
[data]
synthetic = true
[model]
vocab_size = 64
[schedule]
name = "cosine"
final_fraction = 0.1
"""


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def recipe(tmp_path):
    return write(tmp_path, RECIPE)


def test_another_name_takes_its_own_defaults(recipe):
    resolved = load_recipe(recipe, ["--schedule.name", "linear"])
    assert resolved.recipe.schedule == LinearConfig()
    assert resolved.notes == (
        "schedule.name = linear (command line) sets [schedule] to its own defaults: final_fraction 0.0 (was 0.1); set "
        "what should stay",
    )
    kept = load_recipe(recipe, ["--schedule.name", "linear", "--schedule.final-fraction", "0.1"])
    assert kept.recipe.schedule == LinearConfig(final_fraction=0.1) and kept.notes == ()
    same = load_recipe(recipe, ["--schedule.name", "cosine"])
    assert same.recipe.schedule.final_fraction == 0.1 and same.notes == ()


def test_adamw_over_a_recipe_with_lamb():
    """LAMB's epsilon, learning rate, decay and missing bias correction and clipping are not those of AdamW."""
    lamb = load_recipe("bert-base-phase1", require_data=False).recipe.optimizer
    assert isinstance(lamb, LambConfig) and lamb != LambConfig(), "the recipe has values of its own"
    words = ["--optimizer.name", "adamw", "--optimizer.beta2", "0.98"]
    resolved = load_recipe("bert-base-phase1", words, require_data=False)
    assert resolved.recipe.optimizer == AdamWConfig(beta2=0.98)
    (note,) = resolved.notes
    lost = {name for name in vars(AdamWConfig()) if getattr(lamb, name) != getattr(AdamWConfig(), name)}
    for name in lost - {"name", "beta2"}:
        new, old = (show(getattr(optimizer, name)) for optimizer in (AdamWConfig(), lamb))
        assert f" {name} {new} (was {old})" in note
    assert lost >= {"learning_rate", "epsilon", "bias_correction", "clip_norm"} and "beta2" not in note
    assert "optimizer.learning_rate (bert-base-phase1:" in resolved.sources["optimizer.name"]


def test_a_recipe_that_starts_from_another_resets_it_alike(tmp_path):
    text = 'from = "bert-base-phase1"\n[optimizer]\nname = "adamw"\n[objective]\nname = "mlm"\n'
    resolved = load_recipe(write(tmp_path, text), require_data=False)
    assert resolved.recipe.optimizer == AdamWConfig()
    assert any("learning_rate" in note for note in resolved.notes)
    again = load_recipe(write(tmp_path, recipe_to_toml(resolved.recipe)), require_data=False)
    assert again.recipe == replace(resolved.recipe, name=again.recipe.name) and again.notes == ()


def test_another_family_keeps_the_size_of_the_recipe():
    words = ["--model.family", "roberta", "--objective.name", "mlm"]
    before, after = (load_recipe("bert-tiny", given, require_data=False).recipe.model for given in ([], words))
    assert (after.num_layers, after.hidden_size) == (before.num_layers, before.hidden_size)


def test_another_name_from_python():
    recipe = load_recipe("bert-base-phase1", require_data=False).recipe
    random = {"data.synthetic": True, "model.vocab_size": 64}
    resolved = override_recipe(recipe, override_leaves({"optimizer.name": "adamw", **random}))
    assert resolved.recipe.optimizer == AdamWConfig() and " epsilon 1e-08 (was 1e-06)," in resolved.notes[0]
    assert "split_qkv" not in resolved.notes[0] and "no_decay" not in resolved.notes[0]
    same = override_recipe(recipe, override_leaves({"optimizer.name": "lamb", **random}))
    assert same.recipe.optimizer == recipe.optimizer and same.notes == ()


def test_print_recipe_begins_with_what_changed(recipe, capsys):
    assert main(["train", recipe, "--schedule.name", "linear", "--print-recipe"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"# {load_recipe(recipe, ['--schedule.name', 'linear']).notes[0]}"
