"""Any recipe trains without data, with ``--data.synthetic``."""

import json
from pathlib import Path

import pytest

from hornbook.__main__ import main
from hornbook.config import bundled_recipes, load_recipe

TINY = """model.vocab-size=300 model.num-layers=2 model.hidden-size=64 model.num-heads=4 training.steps=2
training.global-batch-size=4 training.micro-batch-size=2 data.sequence-length=32 data.synthetic=true
parallel.pipeline-parallel=1 parallel.layers-per-stage=none parallel.tensor-parallel=1 parallel.sequence-parallel=false
parallel.data-parallel=replicate parallel.pipeline-schedule=1f1b precision.compute=fp32"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in bundled_recipes() if not name.endswith("-mnli")])
def test_it_trains_on_random_tokens(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--{word}" for word in TINY.split()]
    recipe = load_recipe(name, require_data=False).recipe
    if getattr(recipe.model, "embedding_size", None):
        words.append("--model.embedding-size=32")
    if getattr(recipe.model, "num_kv_heads", None):
        words += ["--model.num-kv-heads=2", "--model.head-size=16", "--model.feed-forward-size=96"]
    if getattr(recipe.model, "window", None):
        words.append("--model.window=16")
    if recipe.sparsity.linears:
        words.append("--sparsity.block-size=4")
    code = main(["train", name, *words, "--output", str(tmp_path / "run"), "--device", "cpu", "--json"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, answer.get("error")) == (0, None)
