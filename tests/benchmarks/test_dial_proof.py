"""The grid around the dial's choice: the time of the pilot counts, as in ``train auto``; the recorded runs."""

import json
import math
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_text import build_tiny

import dial_proof
from hornbook.measure.dial import OTHER, START_AND_END
from hornbook.plan.dial import Pilot
from scaling_runs import Trial

TOKEN_SECONDS = 1e-4


@pytest.mark.parametrize("pilot_seconds", [0.0, 30.0])
def test_tokens_are_those_of_the_time_that_the_pilot_leaves(
    pilot_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def train_pilot(recipe_of: object, sources: object, tokens: int, device: object) -> Pilot:
        nonlocal now
        now += pilot_seconds
        return Pilot(tokens=tokens, early=1.5, late=1.2)

    build_tiny(tmp_path / "corpus")
    monkeypatch.setattr(dial_proof, "train_pilot", train_pilot)
    monkeypatch.setattr(dial_proof, "time", SimpleNamespace(process_time=lambda: now))
    monkeypatch.setattr(dial_proof, "token_seconds", lambda recipes: {key: TOKEN_SECONDS * key[0] for key in recipes})
    monkeypatch.setattr(dial_proof, "open_store", lambda *_: SimpleNamespace(num_tokens=10**9))
    found = dial_proof.plan_grid(tmp_path / "corpus", 900.0)
    left = (900.0 - START_AND_END - pilot_seconds) / OTHER
    for trial in found["trials"]:
        assert trial["tokens"] == pytest.approx(left / (TOKEN_SECONDS * trial["width"]), abs=2)
    assert [trial["seed"] for trial in found["trials"][:3]] == [0, 1, 2]
    assert math.isfinite(found["predicted"])


def test_recorded_runs_have_the_keys_of_trials() -> None:
    rows = json.loads(Path(str(dial_proof.__file__)).with_suffix(".json").read_text())
    names = {field.name for field in fields(Trial)}
    assert rows and all({"corpus", "width", "tokens", "seed", "windows"} == row.keys() & names for row in rows)
