"""The model card of an export: how to load the model, its data, recipe and numbers, and who decides on the license."""

import json
import re
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_encoder_runs import encoder_contents
from tiny_huggingface import tiny_contents
from tiny_text import build_tiny

from hornbook.__main__ import main
from hornbook.checkpoint import Contents
from hornbook.exchange.huggingface import write_folder
from hornbook.version import __version__

MODEL = ["--model.num-layers", "1", "--model.hidden-size", "16", "--model.num-heads", "2"]
MODEL += ["--model.max-positions", "64", "--model.vocab-size", "none", "--data.sequence-length", "16"]
MODEL += ["--tracking.sample-every-steps", "none"]
STEPS = ["--training.steps", "3", "--training.global-batch-size", "2", "--training.micro-batch-size", "2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A corpus with a held-out part, a run on it, an evaluation of the run, and its export."""
    home = tmp_path_factory.mktemp("card")
    build_tiny(home / "mine")
    train = ["train", "demo", "--data.train", str(home / "mine"), "--output", str(home / "run"), "--threads", "1"]
    assert main([*train, *MODEL, *STEPS, "--schedule.warmup-steps", "1", "--tracking.log-every-steps", "1"]) == 0
    assert main(["evaluate", str(home / "run"), "--tasks", "bits_per_byte", "--threads", "1"]) == 0
    export = ["checkpoint", "export", str(home / "run"), "--output", str(home / "out")]
    assert main([*export, "--license", "apache-2.0"]) == 0
    return home


@pytest.fixture(scope="module")
def card(home):
    return (home / "out" / "README.md").read_text(encoding="utf-8")


def fenced(card, language):
    return re.search(rf"```{language}\n(.*?)```", card, re.DOTALL)[1]


def test_the_header_is_that_of_the_hub(card):
    header = card.split("---\n")[1].splitlines()
    assert header == [
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        "- hornbook",
        "license: apache-2.0",
    ]
    assert card.rstrip().endswith("## License\n\napache-2.0") and f"hornbook {__version__}" in card


def test_its_code_runs(home, card, monkeypatch, capsys):
    monkeypatch.chdir(home)
    code = fenced(card, "python")
    assert "GPT2LMHeadModel.from_pretrained('out')" in code and "start_token" not in code
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Once upon a time")
    assert "every document follows `<|endoftext|>`, so the tokenizer puts it before each prompt" in card


def test_the_data_are_those_of_the_manifests(home, card):
    for split in ("train", "validation"):
        manifest = json.loads((home / "mine" / split / "manifest.json").read_text())
        counts = [f"{manifest[f'num_{what}']:,}" for what in ("documents", "tokens", "bytes")]
        assert f"| mine | {split} | {' | '.join(counts)} |" in card
    for source in manifest["sources"]:
        assert f"`{Path(source).name}`" in card


def test_the_recipe_is_whole_and_names_no_folder_of_the_user(home, card):
    own = tomllib.loads((home / "run" / "recipe.toml").read_text())
    shown = tomllib.loads(fenced(card, "toml"))
    assert shown["data"].pop("train") == ["mine"] and own["data"].pop("train") == [str(home / "mine")]
    assert shown == own
    assert str(home) not in card


def test_every_number_has_its_step_and_its_convention(home, card):
    evaluation = json.loads((home / "run" / "evaluation.json").read_text())["tasks"][0]
    for row in evaluation["rows"]:
        (line,) = [line for line in card.splitlines() if line.startswith(f"| bits_per_byte: {row['metric']} |")]
        assert f"| {row['value']:.6g} | 3 | {row['convention']}; on mine, validation split |" in line
    rows = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    for kind in ("train", "validation"):
        logged = [row for row in rows if row["kind"] == kind][-1]
        assert f"| {kind} loss | {logged['loss']:.6g} | {logged['step']} | mean in nats over the scored tokens" in card


def test_numbers_of_another_checkpoint_are_left_out(home, tmp_path):
    evaluation = json.loads((home / "run" / "evaluation.json").read_text())
    changed = json.dumps({"tasks": [task | {"step": 2} for task in evaluation["tasks"]]})
    path = home / "run" / "evaluation.json"
    before = path.read_bytes()
    try:
        path.write_text(changed)
        assert main(["checkpoint", "export", str(home / "run"), "--output", str(tmp_path / "out")]) == 0
    finally:
        path.write_bytes(before)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "bits_per_byte:" not in text and "| validation loss |" in text
    assert "# license: fill in before you publish" in text and "Not stated yet" in text


def test_a_damaged_file_costs_only_its_own_numbers(home, tmp_path, capsys):
    path = home / "run" / "evaluation.json"
    before = path.read_bytes()
    try:
        path.write_text("[]")
        assert main(["checkpoint", "export", str(home / "run"), "--output", str(tmp_path / "out")]) == 0
    finally:
        path.write_bytes(before)
    assert "warning: the model card lacks what is in a damaged file: " in capsys.readouterr().err
    text = (tmp_path / "out" / "README.md").read_text()
    assert "bits_per_byte:" not in text and "| validation loss |" in text


def test_what_was_imported_was_not_trained_here(home, tmp_path):
    assert main(["checkpoint", "import", str(home / "out"), "--output", str(tmp_path / "theirs")]) == 0
    assert main(["checkpoint", "export", str(tmp_path / "theirs"), "--output", str(tmp_path / "again")]) == 0
    text = (tmp_path / "again" / "README.md").read_text()
    assert "Imported from `out`" in text and "has not trained it" in text
    assert "## Training" not in text and "## Numbers" not in text and "follows `<|endoftext|>`" in text


def classifier():
    own, labels = tiny_contents(), {"name": "classification", "labels": ["no", "yes"]}
    model = own.documents["recipe"]["model"] | {"head": "classification", "num_labels": 2}
    recipe = own.documents["recipe"] | {"model": model, "objective": labels}
    tensors = {"model": own.tensors["model"] | {"head.labels.weight": torch.zeros(2, 16)}}
    return Contents(step=5, tensors=tensors, documents={"recipe": recipe}, files=own.files)


@pytest.mark.parametrize(
    ("contents", "kind", "name"),
    [
        (partial(encoder_contents, "bert"), "fill-mask", "Bert"),
        (classifier, "text-classification", "GPT2ForSequence"),
    ],
)
def test_other_models(tmp_path, contents, kind, name):
    write_folder(tmp_path / "out", contents())
    text = (tmp_path / "out" / "README.md").read_text()
    assert f"pipeline_tag: {kind}\n" in text and f"import AutoTokenizer, {name}" in text and "generate" not in text


def test_names_do_not_become_markup(tmp_path):
    folder = tmp_path / "a|b<img src=x>`c"
    write_folder(folder, tiny_contents(), license="mit\nx: y")
    text = (folder / "README.md").read_text()
    assert "# a\\|b&lt;img src=x>'c\n" in text and "license: mitxy\n" in text
