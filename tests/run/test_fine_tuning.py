"""Fine-tuning on labels: it learns, resumes bit by bit, and begins with what fits of a pre-training."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import mostly_slow
from tiny import tensors_of
from tiny_labelled import CONTEXT, QUESTIONS, labelled_rows, question, word_pieces, write_jsonl, write_squad
from tiny_runs import digest, metrics_without_time, stop_after
from tiny_sentences import sentence_store
from tiny_text import one_line

from hornbook import checkpoint
from hornbook.__main__ import main
from hornbook.config import load_recipe
from hornbook.errors import CheckpointError, DataError, HornbookError, RecipeError, StoppedBySignal, UserError
from hornbook.parallel.world import World
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import open_run, train
from hornbook.track.metrics import read

RECIPE = """
[model]
family = "bert"
num_layers = 1
hidden_size = 32
num_heads = 2
max_positions = 64
[training]
steps = 8
global_batch_size = 4
micro_batch_size = 2
[optimizer]
learning_rate = 1e-2
[precision]
compute = "fp32"
[checkpoint]
every_steps = 3
[tracking]
log_every_steps = 1
"""
CLASSES = ("--objective.name=classification", "--data.sequence-length=16")
SPANS = ("--objective.name=span", "--objective.max-question-tokens=8", "--objective.document-stride=8")


def recipe_of(folder: Path, *overrides: str):
    (folder / "fine.toml").write_text(RECIPE)
    return load_recipe(str(folder / "fine.toml"), overrides)


def run(folder: Path, *overrides: str, init: InitFrom | None = None):
    folder.mkdir(exist_ok=True)
    return train(recipe_of(folder, *overrides), output=folder / "run", device="cpu", threads=1, init_from=init)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, labelled texts, and questions."""
    folder = tmp_path_factory.mktemp("files")
    word_pieces().save(folder / "tokenizer")
    write_jsonl(folder / "train.jsonl", labelled_rows(3))
    write_jsonl(folder / "dev.jsonl", labelled_rows())
    write_squad(folder / "squad.json", QUESTIONS)
    return folder


@pytest.fixture(scope="module")
def pretrained(files: Path) -> InitFrom:
    """A run of two steps on pairs of sentences."""
    texts = [[word_pieces().encode(part) for part in (CONTEXT, "the sea", "a whale")] for _ in range(4)]
    store = sentence_store(files / "store", texts, tokenizer=word_pieces())
    run(files / "pretrained", f"--data.train={store}", "--objective.name=mlm_nsp", "--training.steps=2")
    return InitFrom(source=str(files / "pretrained" / "run"))


def of(files: Path, kind: str = "classes") -> list[str]:
    """What names files and objective of a run that begins with nothing."""
    train_file, dev_file = ("train.jsonl", "dev.jsonl") if kind == "classes" else ("squad.json", "squad.json")
    paths = [f"--data.train={files / train_file}", f"--data.validation={files / dev_file}"]
    return [*(CLASSES if kind == "classes" else SPANS), *paths, f"--data.tokenizer={files / 'tokenizer'}"]


def rows_of(folder: Path, kind: str):
    return [row for row in read(folder / "run" / "metrics.jsonl") if row["kind"] == kind]


def rows(batch):
    """Tokens and label of each sequence of a padded batch."""
    return [tuple(row) for row in torch.cat((batch["tokens"], batch["labels"][:, None]), dim=1).tolist()]


@pytest.mark.parametrize("kind", ["classes", "spans"])
def test_a_run_learns_its_labels_and_is_measured(files, tmp_path, capsys, kind):
    run(tmp_path, *of(files, kind), "--training.steps=40", "--model.residual-dropout=0")
    rows = rows_of(tmp_path, "validation")
    assert rows[-1]["accuracy"] > 0.9 > rows[0]["accuracy"] or rows[-1]["loss"] < rows[0]["loss"] / 3
    assert main(["evaluate", str(tmp_path / "run"), "--threads", "1", "--compute", "fp32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    values = {row["metric"]: row["value"] for row in result["tasks"][0]["rows"]}
    if kind == "classes":
        assert values["accuracy"] == pytest.approx(rows[-1]["accuracy"])
        assert values["cross_entropy"] == pytest.approx(rows[-1]["loss"], rel=1e-5)
        assert values["macro_f1"] > 0.9
    else:
        assert values["exact_match"] > 0.5 and values["f1"] >= values["exact_match"]
        path = write_squad(tmp_path / "second.json", [*QUESTIONS, question(3, "Who sailed home?", is_impossible=True)])
        assert main(["evaluate", str(tmp_path / "run"), "--threads", "1", "--data", path, "--json"]) == 0
        assert "4 questions, 1 without an answer" in capsys.readouterr().out


@pytest.mark.parametrize("kind", mostly_slow(["spans", "classes"]))
def test_resume_and_micro_batches_change_nothing(files, tmp_path, monkeypatch, kind):
    options = of(files, kind)
    run(tmp_path / "whole", *options)
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(StoppedBySignal):
            run(tmp_path / "cut", *options)
    run(tmp_path / "cut", *options)
    assert digest(tmp_path / "cut", 8) == digest(tmp_path / "whole", 8)
    assert metrics_without_time(tmp_path / "cut") == metrics_without_time(tmp_path / "whole")
    run(tmp_path / "other", *options, "--training.micro-batch-size=4", "--data.layout=packed")
    losses = ([row["loss"] for row in rows_of(tmp_path / name, "train")] for name in ("whole", "other"))
    assert next(losses) == pytest.approx(next(losses), rel=1e-4)


def test_a_part_of_the_sequences_may_be_all_that_is_learned(files, tmp_path):
    recipe = recipe_of(tmp_path, *of(files), "--data.layout=padded", "--data.max-samples=3").recipe
    with open_run(recipe, tmp_path / "run", World()) as opened, opened.batches() as steps:
        assert opened.samples.num_samples == 3
        read = [row for batches, _ in zip(steps, range(6), strict=False) for batch in batches for row in rows(batch)]
    with open_run(recipe_of(tmp_path, *of(files), "--data.layout=padded").recipe, tmp_path / "all", World()) as opened:
        held_out, first = opened.samples.held_out, opened.samples.maker.batches(np.arange(3)[None])
        assert opened.samples.num_samples > 3 and held_out.num_items > 3
    part = sorted(row for batch in first for row in rows(batch))
    assert [sorted(read[at : at + 3]) for at in range(0, 24, 3)] == [part] * 8


def test_it_begins_with_the_pretrained_trunk_and_pooler(files, pretrained, tmp_path, capfd):
    recipe = recipe_of(tmp_path, *of(files)[:-1], "--training.seed=7").recipe
    with open_run(recipe, tmp_path / "run", World(), pretrained) as opened:
        found = tensors_of(opened.state)["model"]
        assert opened.recipe.objective.labels == ("moby", "pride")
        assert opened.tokenizer.digest == word_pieces().digest
    source = checkpoint.load(checkpoint.resolve(Path(pretrained.source))).tensors["model"]
    taken = {name for name, tensor in found.items() if name in source and torch.equal(tensor, source[name])}
    assert found.keys() - taken == {"head.labels.weight", "head.labels.bias"}
    message = (
        "loaded except head.bias, head.classifier, head.transform.dense, head.transform.norm; initialized from the se"
    )
    assert message in capfd.readouterr().err


def test_a_decoder_begins_with_a_pretrained_trunk_learns_and_writes_nothing(files, tmp_path, capfd):
    gpt, vocab = ["--model.family=gpt"], f"--model.vocab-size={word_pieces().vocab_size}"
    run(tmp_path / "lm", *gpt, vocab, "--data.synthetic", "--training.steps=1", "--training.global-batch-size=2")
    init, options = InitFrom(source=str(tmp_path / "lm" / "run")), [*of(files), *gpt]
    with open_run(recipe_of(tmp_path, *options, "--training.seed=7").recipe, tmp_path / "new", World(), init) as opened:
        found = tensors_of(opened.state)["model"]
    source = checkpoint.load(checkpoint.resolve(Path(init.source))).tensors["model"]
    taken = {name for name, tensor in found.items() if name in source and torch.equal(tensor, source[name])}
    assert taken == source.keys() and found.keys() - taken == {"head.labels.weight"}
    assert "initialized from the seed: head.labels" in capfd.readouterr().err
    run(tmp_path, *options, "--training.steps=40", init=init)
    rows = rows_of(tmp_path, "validation")
    assert rows[-1]["accuracy"] > 0.9 > rows[0]["accuracy"] or rows[-1]["loss"] < rows[0]["loss"] / 3
    words = [str(tmp_path / "run"), "--threads", "1", "--json"]
    assert main(["evaluate", *words, "--compute", "fp32"]) == 0
    values = {row["metric"]: row["value"] for row in last_json(capfd)["tasks"][0]["rows"]}
    assert values["accuracy"] == pytest.approx(rows[-1]["accuracy"])
    assert values["cross_entropy"] == pytest.approx(rows[-1]["loss"], rel=1e-5)
    assert main(["predict", words[0], str(files / "dev.jsonl"), "--output", str(tmp_path / "out.jsonl")]) == 0
    predicted = [json.loads(line)["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert np.mean([found == row["label"] for found, row in zip(predicted, labelled_rows(), strict=True)]) > 0.9
    for command in (["evaluate", *words, "--tasks", "bits_per_byte"], ["generate", *words, "--prompt", "a"]):
        assert main(command) == 2
        assert re.search(
            "was trained with classification: use|classifies texts and cannot generate", capfd.readouterr().err
        )


def last_json(capfd):
    return json.loads(capfd.readouterr().out.splitlines()[-1])


def test_a_fine_tuned_model_keeps_its_classes_and_gives_other_classes_a_new_layer(files, tmp_path):
    run(tmp_path / "first", *of(files), "--training.steps=1")
    init = InitFrom(source=str(tmp_path / "first" / "run"))
    tuned = checkpoint.load(checkpoint.resolve(Path(init.source))).tensors["model"]
    for name, options in {"same": [], "other": ["--objective.labels=pride,moby"]}.items():
        recipe = recipe_of(tmp_path, *of(files), *options, "--training.seed=7").recipe
        with open_run(recipe, tmp_path / name, World(), init) as opened:
            found = tensors_of(opened.state)["model"]
            assert torch.equal(found["head.labels.weight"], tuned["head.labels.weight"]) == (name == "same")
            assert torch.equal(found["head.pooler.weight"], tuned["head.pooler.weight"])


def test_the_source_may_be_missing_when_a_run_resumes(files, pretrained, tmp_path, monkeypatch):
    source = shutil.copytree(pretrained.source, tmp_path / "source")
    init, options = InitFrom(source=str(source)), of(files)[:-1]
    with monkeypatch.context() as patch, pytest.raises(StoppedBySignal):
        stop_after(patch, 4)
        run(tmp_path / "cut", *options, init=init)
    shutil.rmtree(source)
    assert run(tmp_path / "cut", *options)["step"] == 8


def test_the_best_may_be_chosen_by_a_task(files, tmp_path):
    tasks = ("--evaluation.tasks=classification", "--checkpoint.best-by=classification/accuracy")
    result = run(tmp_path, *of(files), *tasks)
    values = {row["step"]: row["value"] for row in rows_of(tmp_path, "task") if row["metric"] == "accuracy"}
    assert result["best_value"] == max(values.values())
    assert all("table" not in row for row in rows_of(tmp_path, "task")), "the log has the numbers alone"


def test_moments_of_a_pretraining_cannot_be_kept(files, pretrained, tmp_path):
    with pytest.raises(UserError, match="the optimizer state cannot be kept: remove `init_optimizer='keep'`"):
        run(tmp_path, *of(files)[:-1], init=InitFrom(source=pretrained.source, keep_optimizer=True))


def test_another_trunk_is_refused(files, pretrained, tmp_path):
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path, *of(files)[:-1], "--model.num-layers=2", init=pretrained)
    assert one_line(caught.value, "the recipe's model differs: num_layers 1 there and 2 here;")
    assert "head." not in str(caught.value)


def test_a_pretraining_does_not_begin_with_a_fine_tuned_model(files, pretrained, tmp_path):
    run(tmp_path / "tuned", *of(files), "--training.steps=1")
    options = [f"--data.train={files / 'store'}", "--objective.name=mlm_nsp"]
    with pytest.raises(CheckpointError, match=r"head\.transform\.dense\.bias is missing; so are 3 more"):
        run(tmp_path, *options, init=InitFrom(source=str(tmp_path / "tuned" / "run")))


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["--data.tokenizer=none"], UserError, "labeled texts need a tokenizer: start from a pre-trained model"),
        (["--objective.label=class"], DataError, r"the column 'class' is missing \(columns: 'text', 'label'\)"),
        (["--objective.labels=moby,emma"], DataError, "the label 'pride' is not among the 2 classes"),
        (["--objective.labels=moby,moby"], UserError, "expected at least two, all different"),
        (["--model.num-labels=3"], UserError, "as many as model.num_labels"),
        (["--data.sequence-length=2"], UserError, "are too short for a text"),
        (["--data.train=store"], DataError, "expected labeled texts in a .jsonl, .csv or .tsv file"),
        (
            ["--model.family=factorized_gpt"],
            RecipeError,
            'classification needs an encoder; .* "modernbert" or, for classes, "gpt"$',
        ),
        (["--model.family=gpt", "--data.document-mask"], RecipeError, "document_mask applies only to token stores"),
        (["--model.family=gpt", "--tracking.sample-every-steps=1"], RecipeError, "applies only to causal_lm"),
        (["--data.train=none", "--data.synthetic"], RecipeError, "synthetic data has no labels; set data.train"),
        (["--model.head=span"], RecipeError, 'head applies only to objective.name = "span"; remove it'),
        (["--model.vocab-size=20"], UserError, "model.vocab_size is 20"),
    ],
)
def test_what_does_not_fit_is_reported_on_one_line(files, tmp_path, monkeypatch, overrides, kind, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        run(
            tmp_path / "x",
            *[word for word in of(files) if word.split("=")[0] != overrides[0].split("=")[0]],
            *overrides,
        )
    assert isinstance(caught.value, HornbookError) and caught.value.exit_code == 2
    assert one_line(caught.value) and not (tmp_path / "x" / "run" / "run.json").exists()


def test_a_file_of_another_task_is_refused(files, tmp_path):
    with pytest.raises(DataError, match="'text' is missing"):
        run(tmp_path, *of(files), f"--data.train={files / 'squad.json'}")
    with pytest.raises(DataError, match=r"is not valid JSON .*; expected SQuAD's, one object with 'data'"):
        run(tmp_path, *of(files, "spans"), f"--data.train={files / 'train.jsonl'}")


def test_tasks_refuse_models_of_other_tasks(files, tmp_path, capsys):
    run(tmp_path, *of(files), "--training.steps=1")
    messages = {
        "span": "was trained with 'classification' and cannot extract answers",
        "classification": "is not among the 2 classes",
        "lambada": "is an encoder: use classification\n",
    }
    write_jsonl(tmp_path / "x.jsonl", [{"text": "a", "label": "emma"}])
    for task, message in messages.items():
        assert main(["evaluate", str(tmp_path / "run"), "--tasks", task, "--data", str(tmp_path / "x.jsonl")]) == 2
        assert message in capsys.readouterr().err


def test_a_run_without_validation_says_how_to_name_data(files, tmp_path, capsys):
    run(tmp_path, *of(files), "--data.validation=none", "--training.steps=1")
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "has no validation file to score (data.validation): name a labeled file by --data FILE" in message


def test_a_model_may_say_that_there_is_no_answer(files, tmp_path, capsys):
    asked = [*QUESTIONS, question(3, "Who danced?"), question(4, "Where was the ball?")]
    path = write_squad(tmp_path / "squad2.json", asked)
    options = [*of(files, "spans"), "--objective.unanswerable", f"--data.train={path}", f"--data.validation={path}"]
    run(tmp_path, *options, "--training.steps=60", "--model.residual-dropout=0")
    assert main(["evaluate", str(tmp_path / "run"), "--threads", "1", "--compute", "fp32", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"][0]["rows"]
    assert rows[0]["value"] > 0.5


@pytest.mark.parametrize("pooling", mostly_slow(["mean", "cls"]))
def test_modernbert_keeps_the_transform_of_its_pretraining_and_learns(files, tmp_path, capfd, pooling):
    modern, vocab = ["--model.family=modernbert"], f"--model.vocab-size={word_pieces().vocab_size}"
    masked = [*modern, vocab, "--data.synthetic", "--objective.name=mlm"]
    run(tmp_path / "lm", *masked, "--training.steps=1", "--training.global-batch-size=2")
    init = InitFrom(source=str(tmp_path / "lm" / "run"))
    options = [*of(files), *modern, f"--model.classifier-pooling={pooling}"]
    with open_run(recipe_of(tmp_path, *options, "--training.seed=7").recipe, tmp_path / "new", World(), init) as opened:
        found = tensors_of(opened.state)["model"]
    source = checkpoint.load(checkpoint.resolve(Path(init.source))).tensors["model"]
    taken = {name for name, tensor in found.items() if name in source and torch.equal(tensor, source[name])}
    assert found.keys() - taken == {"head.labels.weight", "head.labels.bias"}
    assert "head.transform.dense.weight" in taken
    run(tmp_path, *options, "--training.steps=40", init=init)
    rows = rows_of(tmp_path, "validation")
    assert rows[-1]["accuracy"] > 0.9 > rows[0]["accuracy"] or rows[-1]["loss"] < rows[0]["loss"] / 3
    assert main(["checkpoint", "export", str(tmp_path / "run"), "--output", str(tmp_path / "hf")]) == 0
    assert main(["evaluate", str(tmp_path / "hf"), "--data", str(files / "dev.jsonl"), "--threads", "1", "--json"]) == 0
    values = {row["metric"]: row["value"] for row in last_json(capfd)["tasks"][0]["rows"]}
    assert values["accuracy"] == pytest.approx(rows[-1]["accuracy"])
