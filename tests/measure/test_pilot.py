"""The pilot against a run of ``hornbook train``, and how long it may be."""

import math
from pathlib import Path

import pytest
import torch
from tiny_text import build_tiny

import hornbook
from hornbook.config import Recipe, load_recipe
from hornbook.corpora.store import open_store
from hornbook.measure import pilot
from hornbook.measure.pilot import bits_per_nat, pilot_tokens, train_pilot
from hornbook.plan.dial import BASE, options_of
from hornbook.samples.sources import complete, open_sources

SHORT = {"data.sequence_length": 16, "precision.compute": "fp32"}


def test_losses_are_those_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "EARLY_TOKENS", 2**11)
    build_tiny(tmp_path / "corpus")

    def options(tokens: int) -> dict[str, object]:
        return {"data.train": str(tmp_path / "corpus"), **SHORT, **options_of(1, tokens, windows=16, length=16)}

    def recipe_of(tokens: int) -> Recipe:
        recipe = load_recipe(BASE, [f"--{name}={value}" for name, value in options(tokens).items()]).recipe
        return complete(recipe, open_sources(recipe))

    sources = open_sources(recipe_of(2**11))
    found = train_pilot(recipe_of, sources, 2**13, torch.device("cpu"))
    for tokens, loss in ((2**11, found.early), (2**13, found.late)):
        run = hornbook.train(BASE, options(tokens), output=tmp_path / str(tokens), device="cpu")
        assert run.summary["validation_loss"] == pytest.approx(loss, rel=1e-6)
    assert found.late < found.early
    store = open_store(tmp_path / "corpus", "validation")
    assert bits_per_nat(sources) == pytest.approx(store.num_tokens / store.num_bytes / math.log(2))


@pytest.mark.parametrize(
    ("unique", "most", "tokens"),
    [
        (1e6, math.inf, 2**20),
        (1e6, 1e6, 2**19),
        (1e6, 3e5, 2**17),
        (1e6, 2e5, None),
        (6e4, math.inf, 2**17),
        (4e4, math.inf, None),
    ],
)
def test_a_pilot_fits_text_and_time(unique: float, most: float, tokens: int | None) -> None:
    assert pilot_tokens(unique, most) == tokens
