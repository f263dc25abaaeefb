"""``hornbook evaluate`` of encoders: what is measured if nothing is said, of which text, and what is refused."""

import json
from pathlib import Path

import pytest
from tiny_encoder_runs import build_sentences, encoder, encoder_contents, on_corpus
from written_runs import save_run

from hornbook.__main__ import main
from hornbook.checkpoint import save
from hornbook.exchange.huggingface import write_folder

SIZES = ["--model.num-layers=1", "--model.hidden-size=32", "--data.sequence-length=32", "--training.steps=1"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an encoder of one step, its corpus, a decoder, an encoder that transformers wrote, and a text."""
    folder = tmp_path_factory.mktemp("home")
    corpus = build_sentences(folder / "corpus")
    words = ["train", "bert-tiny", *encoder("bert"), *on_corpus(corpus), *SIZES, "--output", str(folder / "run")]
    assert main([*words, "--threads", "1"]) == 0
    save_run(folder / "decoder")
    contents = encoder_contents("bert")
    write_folder(folder / "hf", contents)
    save(folder / "untrained" / "checkpoints", contents)
    (folder / "text.txt").write_text("the old cat sat near the river.")
    return folder


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def evaluate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, dict]]:
    """The rows of a command that succeeds, by task and metric."""
    capsys.readouterr()
    assert main(["evaluate", *words, "--threads", "1", "--compute", "fp32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    return {task["name"]: {row["metric"]: row for row in task["rows"]} for task in result["tasks"]}


def test_the_default_is_masked_tokens_of_what_the_run_held_out(home, capsys):
    (rows,) = evaluate(capsys, "run").values()
    assert set(rows) == {"loss", "accuracy", "perplexity", "next_sentence_loss", "next_sentence_accuracy"}
    log = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    (validation,) = [row for row in log if row["kind"] == "validation"]
    assert rows["loss"]["value"] == pytest.approx(validation["mlm"], rel=0.02), "in bf16 there"
    assert f"{validation['tokens']} tokens" in rows["loss"]["convention"]
    saved = json.loads((home / "run" / "evaluation.json").read_text())["tasks"]
    assert [task["name"] for task in saved] == ["masked_lm"]
    assert main(["runs", "report", "run"]) == 0
    page = (home / "run" / "report.html").read_text()
    assert "next_sentence_accuracy" in page.replace("<wbr/>", "") and "drawn by seed 0" in page


def test_both_tasks_of_part_of_a_store(capsys):
    words = ("--tasks", "masked_lm", "pseudo_perplexity", "--max-sequences", "2", "--data", "corpus", "--window", "16")
    tasks = evaluate(capsys, "hf", *words)
    assert "of 2 sequences" in tasks["masked_lm"]["loss"]["convention"]
    assert "2 of " in tasks["pseudo_perplexity"]["nats_per_token"]["convention"]
    assert evaluate(capsys, "untrained", *words)["pseudo_perplexity"] == tasks["pseudo_perplexity"]


def test_a_text(capsys):
    rows = evaluate(capsys, "run", "--tasks", "pseudo_perplexity", "--data", "text.txt")["pseudo_perplexity"]
    assert "1 of 1 sequence;" in rows["nats_per_token"]["convention"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--tasks", "wikitext103", "--data", "text.txt"], "'wikitext103' is for decoders, but run/checkpoints"),
        (["run", "--tasks", "masked_lm", "lambada"], "'lambada' is for decoders"),
        (["run", "--tasks", "bits_per_byte"], "is an encoder: use one of "),
        (["decoder", "--tasks", "masked_lm"], "'masked_lm' is for encoders, but decoder/checkpoints"),
        (["decoder", "--max-sequences", "3"], "--max-sequences applies only to encoders"),
        (["run", "--overlap", "3"], "--overlap applies only to decoders"),
        (["run", "--max-sequences", "0"], "must be at least 1"),
        (["run", "--data", "text.txt"], "text.txt: not a token store; to make one from text: `hornbook corpus build"),
        (["untrained"], "the run names no validation data: say which store to score with --data FOLDER"),
        (["run", "--window", "33"], "a window of 33 tokens is longer than the model's 32 positions"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys) -> None:
    capsys.readouterr()
    assert main(["evaluate", *words, "--threads", "1"]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert message in error
