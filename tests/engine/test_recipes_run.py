"""Every recipe that comes along trains: shrunk, on random tokens, two steps; and phase 2 goes on from phase 1."""

import math

import pytest

from hornbook.config import bundled_recipes, load_recipe
from hornbook.engine.initial import InitFrom
from hornbook.engine.launch import train
from hornbook.track.metrics import read

_SMALL = (
    "--model.num-layers=2 --model.hidden-size=32 --model.num-heads=2 --model.vocab-size=70 --model.max-positions=24 "
    "--data.synthetic --training.steps=2 --training.global-batch-size=4 --training.micro-batch-size=2 "
    "--tracking.sample-every-steps=none --precision.compute=fp32 --checkpoint.every-steps=2"
)
SMALL = _SMALL.split()


def run_small(name, folder, *overrides, init_from=None):
    resolved = load_recipe(name, [*SMALL, "--data.sequence-length=16", *overrides])
    return train(resolved, output=folder, device="cpu", threads=1, init_from=init_from)


@pytest.mark.parametrize("name", bundled_recipes())
def test_a_bundled_recipe_trains(tmp_path, name):
    run_small(name, tmp_path / "run")
    rows = read(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"][-1] == 2
    assert all(math.isfinite(row["loss"]) for row in rows)
    terms = {"mlm", "nsp"} & set(rows[0])
    assert terms == ({"mlm", "nsp"} if "bert-" in name and "wikitext2" not in name else {"mlm"} & terms)


@pytest.mark.parametrize("model", ["bert-base", "bert-large", "groupbert-base"])
@pytest.mark.parametrize("keep", [False, True])
def test_phase_2_goes_on_from_phase_1_with_longer_sequences(tmp_path, model, keep):
    run_small(f"{model}-phase1", tmp_path / "first")
    start = InitFrom(source=str(tmp_path / "first"), keep_optimizer=keep)
    run_small(f"{model}-phase2", tmp_path / "second", "--data.sequence-length=24", init_from=start)
    first, second = (read(tmp_path / name / "metrics.jsonl") for name in ("first", "second"))
    assert second[-1]["step"] == 2
    assert second[0]["loss"] < first[0]["loss"] + 0.5
