"""The experiment of sparse learning: what is run, what is resumed, and what the table says."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_text import build_tiny

from hornbook.config import load_recipe

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "sparse_learning.py"
SPEC = importlib.util.spec_from_file_location("sparse_learning", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
learning = importlib.util.module_from_spec(SPEC)
sys.modules["sparse_learning"] = learning  # for its dataclasses
SPEC.loader.exec_module(learning)


def test_all_models_are_compared_at_about_the_same_flops() -> None:
    scale = learning.Scale()
    models, experiment = learning.models(scale), learning.Experiment(Path("unused"), scale)
    names = [model.name for model in models]
    assert names[:4] == ["dense 256", "dense 64", "dense 80", "dense 112"]
    assert names[4:6] == ["blocks of 4 static", "blocks of 4 random 0.1 every 100"] and len(names) == 16
    steps = [experiment._steps_of_flops(model, scale.petaflops) for model in models]
    assert steps[0] < min(steps[1:]) and len(set(steps[4:])) <= len(
        scale.block_sizes
    )  # sparse ones of a block size agree


def test_the_experiment_of_patterns_compares_changes_with_none() -> None:
    scale = learning.PATTERNS
    models, experiment = learning.models(scale), learning.Experiment(Path("unused"), scale)
    assert [model.name for model in models[:2]] == ["blocks of 4 static", "blocks of 4 rigl 0.03 every 36"]
    assert {experiment._steps_of_flops(model, scale.petaflops) for model in models} == {720}
    for model in models:
        config = load_recipe(model.recipe, experiment._options(model), require_data=False).recipe.sparsity
        assert model.name.startswith(f"blocks of {config.block_size} {config.update}")
        if config.update != "static":
            assert model.name.endswith(f" {config.prune_ratio:g} every {config.update_interval}")
    outcomes = {
        name: {"equal FLOPs": learning.Outcome(3e-3, 720, {0: loss, 1: loss + 0.5})}
        for name, loss in (("blocks of 4 static", 3.0), ("blocks of 4 rigl 0.1 every 100", 2.75))
    }
    lines = learning.table(outcomes).splitlines()
    assert lines[0].endswith("| minus blocks of 4 static |") and lines[0].count("loss") == 1
    assert lines[-1].endswith("| 3.000 ± 0.250 | -0.250 ± 0.000 |")


def test_a_long_experiment_has_dense_models_of_as_many_weights() -> None:
    scale = learning.LONG
    experiment = learning.Experiment(Path("unused"), scale)
    sizes = {}
    for model in learning.models(scale):
        options = [*experiment._options(model), f"--model.vocab-size={scale.vocab_size}"]
        recipe = load_recipe(model.recipe, options, require_data=False).recipe
        in_linear_layers = 12 * recipe.model.hidden_size**2 * recipe.model.num_layers
        density = recipe.sparsity.density if recipe.sparsity.is_sparse else 1.0
        sizes[model.name] = density * in_linear_layers, recipe.num_parameters()
    in_linear_layers, total = sizes["blocks of 4 static"]
    assert sizes["dense 40"][0] == pytest.approx(in_linear_layers, rel=0.03)
    assert sizes["dense 56"][1] < total < sizes["dense 72"][1]


def test_the_table_subtracts_the_best_dense_model_seed_by_seed() -> None:
    def outcome(*losses: float) -> object:
        by_seed = dict(enumerate(losses))
        return {"equal FLOPs": learning.Outcome(3e-3, 1000, by_seed), "40 s": learning.Outcome(6e-3, 50, by_seed)}

    text = learning.table({"dense 4": outcome(2.0, 4.0), "dense 2": outcome(5.0, 6.0), "b": outcome(1.5, 3.9)})
    lines = text.splitlines()
    assert lines[0].count("minus dense 4") == 2 and lines[1].count("---") == 9
    numbers = "2.700 ± 1.200 | -0.300 ± 0.200 |"
    assert lines[-1] == f"| b | 1,000 | 0.003 | {numbers} 50 | 0.006 | {numbers}"


def test_an_experiment_of_another_scale_is_refused(tmp_path: Path) -> None:
    for name in ("tokenizer", "corpus"):
        (tmp_path / name).mkdir()
    learning.Experiment(tmp_path, learning.SHRUNK).prepare()
    learning.Experiment(tmp_path, learning.SHRUNK).prepare()
    with pytest.raises(SystemExit, match="holds an experiment of another scale"):
        learning.Experiment(tmp_path, learning.Scale()).prepare()


def test_only_folders_of_its_own_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = []

    def trained(*words: str) -> dict[str, float]:
        output = Path(words[words.index("--output") + 1])
        output.mkdir()
        outputs.append(output)
        return {"validation_loss": 1.0}

    monkeypatch.setattr(learning, "hornbook", trained)
    (tmp_path / "results").mkdir()
    notes = tmp_path / "runs" / "dense-256-7-0.003-0" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    experiment = learning.Experiment(tmp_path, learning.SHRUNK)
    model = learning.models(learning.Scale())[0]
    assert experiment.train(model, 7, 3e-3, 0) == 1.0
    assert notes.read_text() == "mine" and len(outputs) == 1 and not outputs[0].exists()
    assert [*notes.parent.parent.iterdir()] == [notes.parent]


@pytest.mark.slow
def test_a_second_call_makes_only_the_runs_that_are_missing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = replace(
        learning.SHRUNK, vocab_size=300, petaflops=2e-7, seconds=(0.05,), sequence_length=16, hidden_size=32
    )
    monkeypatch.setattr(learning, "MOST_LEARNING_RATES", 4)
    experiment = learning.Experiment(tmp_path, scale)
    build_tiny(tmp_path / "corpus")
    (tmp_path / "tokenizer").mkdir()
    experiment.prepare()
    model = learning.models(scale)[-1]
    assert model.name == "blocks of 4 rigl 0.1 every 5"
    experiment.time_steps([model])
    outcomes = experiment.contest(model)
    assert [*outcomes] == ["equal FLOPs", "0.05 s"]
    assert all([*outcome.losses] == [0, 1] for outcome in outcomes.values())
    files = sorted((tmp_path / "results").iterdir())
    assert capfd.readouterr().err.count("loss") == len(files) and not any((tmp_path / "runs").iterdir())
    run = f"{outcomes['equal FLOPs'].steps}-{outcomes['equal FLOPs'].learning_rate:g}-1"
    missing = tmp_path / "results" / f"blocks-of-4-rigl-0.1-every-5-{run}.json"
    missing.unlink()
    assert experiment.contest(model) == outcomes
    assert capfd.readouterr().err.count("loss") == 1  # training is deterministic
    assert json.loads(missing.read_text()) == {"loss": outcomes["equal FLOPs"].losses[1]}
