"""The search for what learns fastest: its candidates, the halving, and a run of one of them."""

import json
from pathlib import Path

import pytest
from tiny_text import build_tiny

import learning_search as search
from hornbook.config import load_recipe


def test_candidates_are_different_repeatable_and_valid() -> None:
    corpora, also = [Path("a"), Path("b")], ["optimizer.name=adamw optimizer.learning_rate=3e-3"]
    found = search.candidates("decoder-demo", corpora, also, num_draws=20, seed=1)
    assert found == search.candidates("decoder-demo", corpora, also, num_draws=20, seed=1)
    assert len(found) == len(set(found)) == 24 and str(found[0]) == "decoder-demo a"
    for candidate in found:
        recipe = load_recipe(candidate.recipe, ["--data.train=a", "--model.vocab-size=64", *candidate.words]).recipe
        assert recipe.training.micro_batch_size == recipe.training.global_batch_size
    assert load_recipe("decoder-demo", found[1].words, require_data=False).recipe.optimizer.name == "adamw"


class FakePool:
    def __init__(self, workers: int) -> None:
        assert workers == 2

    def __enter__(self) -> "FakePool":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    map = staticmethod(map)


def test_the_better_third_gets_the_next_budget_and_all_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first budget number 5 is best; with the last, of those that are left, number 4 is by the mean."""
    all_candidates = [search.Candidate("demo", Path("a"), (("number", number),)) for number in range(6)]
    runs: list[tuple[int, float, int]] = []

    def run(candidate: search.Candidate, root: Path, budget: float, seed: int) -> search.Outcome:
        (number,) = dict(candidate.options).values()
        runs.append((number, budget, seed))
        return search.Outcome(candidate, 7, 6 - number if budget == 1 else abs(number - 4) + seed)

    monkeypatch.setattr(search, "ProcessPoolExecutor", FakePool)
    monkeypatch.setattr(search, "run", run)
    found = search.halve(all_candidates, tmp_path, [1, 3], seeds=2, workers=2)
    assert [(dict(outcome.candidate.options)["number"], outcome.bits_per_byte) for outcome in found] == [
        (4, 0.5),
        (5, 1.5),
    ]
    assert runs == [*((number, 1, 0) for number in range(6)), (5, 3, 0), (4, 3, 0), (5, 3, 1), (4, 3, 1)]


@pytest.mark.slow
def test_a_run_is_made_once_for_a_budget(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build_tiny(tmp_path / "corpus")
    (tmp_path / "results").mkdir()
    sizes = {"model.num_layers": 1, "model.hidden_size": 8, "model.num_heads": 1, "data.sequence_length": 8}
    candidate = search.Candidate("decoder-demo", tmp_path / "corpus", tuple(sizes.items()))
    outcome = search.run(candidate, tmp_path, budget=0.5, seed=3)
    assert "bits" not in capfd.readouterr().out and 0.0 < outcome.bits_per_byte < 10.0
    assert search.run(candidate, tmp_path, budget=0.5, seed=3) == outcome and not capfd.readouterr().err
    (file,) = (tmp_path / "results").glob("*.json")
    kept = json.loads(file.read_text())
    assert kept["steps"] == outcome.steps == max(1, round(0.5 / kept["step_seconds"]))
