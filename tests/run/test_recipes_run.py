"""Every recipe that comes along trains: shrunk, on random tokens, two steps; and phase 2 goes on from phase 1.

Those with a layout need several ranks; see test_recipe_layouts.py. Those with labels learn from a file.
"""

import math

import pytest
import torch
from cases import mostly_slow
from tiny_labelled import write_jsonl

from hornbook import checkpoint
from hornbook.config import ParallelConfig, bundled_recipes, load_recipe
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train
from hornbook.text.tokenizer import Tokenizer
from hornbook.track.metrics import read

_SMALL = (
    "--model.num-layers=2 --model.hidden-size=32 --model.num-heads=2 --model.vocab-size=70 --model.max-positions=24 "
    "--data.synthetic --training.steps=2 --training.global-batch-size=4 --training.micro-batch-size=2 "
    "--tracking.sample-every-steps=none --precision.compute=fp32 --checkpoint.every-steps=2"
)
SMALL = _SMALL.split()
OF_ONE_PROCESS = [
    name for name in bundled_recipes() if load_recipe(name, require_data=False).recipe.parallel == ParallelConfig()
]


def kind(name):
    """The classes of a recipe's parts, of which one recipe runs by default."""
    recipe = load_recipe(name, require_data=False).recipe
    return type(recipe.model), type(recipe.objective), type(recipe.optimizer)


OF_EACH_KIND = {kind(name): name for name in OF_ONE_PROCESS if not name.endswith("-mnli")}.values()
OTHERS = [name for name in OF_ONE_PROCESS if name not in OF_EACH_KIND and not name.endswith("-mnli")]


def run_small(name, folder, *overrides, init_from=None):
    resolved = load_recipe(name, [*SMALL, "--data.sequence-length=16", *overrides])
    return train(resolved, output=folder, device="cpu", threads=1, init_from=init_from)


def test_a_recipe_with_labels_learns_from_a_file(tmp_path):
    """One will do: shrunk, they differ in numbers alone, and test_presets.py reads these."""
    Tokenizer.train(["the whale and the sea"] * 9, 270, kind="byte-bpe").save(tmp_path / "tokenizer")
    rows = [{"premise": "the whale", "hypothesis": "the sea", "label": number % 3} for number in range(6)]
    path = write_jsonl(tmp_path / "mnli.jsonl", rows)
    words = [word for word in SMALL if "vocab" not in word and "synthetic" not in word]
    files = [f"--data.train={path}", f"--data.tokenizer={tmp_path / 'tokenizer'}"]
    resolved = load_recipe("gpt2-small-mnli", [*words, "--model.vocab-size=none", "--data.sequence-length=16", *files])
    assert train(resolved, output=tmp_path / "run", device="cpu", threads=1)["step"] == 2


@pytest.mark.parametrize("name", mostly_slow([*OF_EACH_KIND, *OTHERS], len(OF_EACH_KIND)))
def test_a_bundled_recipe_trains(tmp_path, name):
    smaller = ["--sparsity.block-size=4", "--objective.unscored-tokens=4"] if name.startswith("sparse-") else []
    if bundled_recipes()[name].read_text().count('family = "decoder"'):
        smaller = ["--model.num-kv-heads=1", "--model.head-size=16", "--model.feed-forward-size=48"]
        smaller += ["--model.window=8"] * name.startswith("gemma")
    run_small(name, tmp_path / "run", *smaller)
    rows = [row for row in read(tmp_path / "run" / "metrics.jsonl") if row["kind"] != "topology"]
    assert [row["step"] for row in rows if row["kind"] == "train"][-1] == 2
    assert all(math.isfinite(row["loss"]) for row in rows)
    terms = {"mlm", "nsp"} & set(rows[0])
    is_pair = "bert-" in name and "wikitext2" not in name and not name.startswith("modernbert-")
    assert terms == ({"mlm", "nsp"} if is_pair else {"mlm"} & terms)


@pytest.mark.parametrize("model", mostly_slow(["groupbert-base", "bert-base", "bert-large"]))
def test_phase_2_starts_from_phase_1_with_longer_sequences(tmp_path, model):
    """One update of a vanishing rate leaves the weights of phase 1, and moments that tell whether its own were kept."""
    run_small(f"{model}-phase1", tmp_path / "first")
    for keep in (False, True):
        start = InitFrom(source=str(tmp_path / "first"), keep_optimizer=keep)
        overrides = ["--data.sequence-length=24", "--training.steps=1", "--optimizer.learning-rate=1e-30"]
        run_small(f"{model}-phase2", tmp_path / f"keep-{keep}", *overrides, init_from=start)
    first = checkpoint.load(tmp_path / "first" / "checkpoints" / "step-00000002")
    fresh, kept = (
        checkpoint.load(tmp_path / f"keep-{keep}" / "checkpoints" / "step-00000001") for keep in (False, True)
    )
    for second in (fresh, kept):
        torch.testing.assert_close(second.tensors["model"], first.tensors["model"], rtol=0, atol=1e-20)
    assert [second.documents["state"]["inherited_updates"] for second in (fresh, kept)] == [0, 2]
    betas = {"exp_avg": 0.9, "exp_avg_sq": 0.999}
    for name, moment in first.tensors["optimizer"].items():
        inherited = kept.tensors["optimizer"][name] - fresh.tensors["optimizer"][name]
        torch.testing.assert_close(inherited, betas[name.rpartition(".")[2]] * moment, rtol=1e-4, atol=1e-8)
