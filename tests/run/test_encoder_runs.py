"""Runs of encoders: the layout, the accumulation and the seed leave alone what they should; what is held out, and when.

That they resume is in test_resume.py, that ranks make no difference in tests/parallel/test_world.py.
"""

import json

import pytest
from cases import mostly_slow
from tiny_encoder_runs import FAMILIES, LAYOUTS, assert_same_rows, build_sentences, encoder, on_corpus
from tiny_runs import metrics_without_time, run_tiny, stop_after
from tiny_text import build_tiny

from hornbook.errors import StoppedBySignal, UserError
from hornbook.track.metrics import read

TERMS = {
    "loss": "mlm",
    "accuracy": "mlm_accuracy",
    "next_sentence_loss": "nsp",
    "next_sentence_accuracy": "nsp_accuracy",
}
"""What a metric of the task masked_lm is called in the rows of a run."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build_sentences(tmp_path_factory.mktemp("encoders") / "corpus")


def run(folder, corpus, family, *overrides):
    """Eight steps, dropout on, sequences of many lengths; the rows of the log."""
    lengths = "sequences=lines" if family == "roberta" else "short-sequence-probability=0.5"
    run_tiny(
        folder, *encoder(family), *on_corpus(corpus), f"--objective.{lengths}", "--evaluation.every-steps=4", *overrides
    )
    return metrics_without_time(folder)


@pytest.mark.parametrize("family", mostly_slow(FAMILIES))
def test_the_layout_changes_nothing_but_the_padding(tmp_path, corpus, family):
    dropout = [f"--model.{kind}-dropout=0.2" for kind in ("embedding", "residual", "attention")]
    batches = ("--training.global-batch-size=16", "--training.micro-batch-size=8")
    padded, packed, unpadded = (
        run(tmp_path / layout, corpus, family, *dropout, *batches, f"--data.layout={layout}") for layout in LAYOUTS
    )
    assert_same_rows(padded, packed, 1e-5, but=["padding"])
    assert_same_rows(padded, unpadded, 1e-5, but=["padding"])
    shares = [[row["padding"] for row in rows if row["kind"] == "train"] for rows in (padded, packed, unpadded)]
    assert sum(shares[0]) > 1.0 and sum(shares[1]) < 0.9 * sum(shares[0]) and set(shares[2]) == {0.0}


@pytest.mark.parametrize(("before", "after"), mostly_slow([("packed", "unpadded"), ("padded", "packed")]))
def test_a_run_resumes_on_another_layout(tmp_path, corpus, monkeypatch, before, after):
    batches = ("--training.global-batch-size=16", "--training.micro-batch-size=8")
    whole = run(tmp_path / "whole", corpus, "bert", *batches, f"--data.layout={before}")
    with monkeypatch.context() as patch, pytest.raises(StoppedBySignal):
        stop_after(patch, 5)
        run(tmp_path / "moved", corpus, "bert", *batches, f"--data.layout={before}")
    moved = run(tmp_path / "moved", corpus, "bert", *batches, f"--data.layout={after}")
    assert_same_rows(whole, moved, 1e-5, but=["padding"])
    assert sum(row.get("padding", 0.0) for row in moved) < sum(row.get("padding", 0.0) for row in whole)


@pytest.mark.slow
@pytest.mark.parametrize("family", mostly_slow(FAMILIES))
def test_accumulation_changes_nothing(tmp_path, corpus, family):
    whole, singles = (
        run(tmp_path / size, corpus, family, f"--training.micro-batch-size={size}", "--data.layout=padded")
        for size in "41"
    )
    assert_same_rows(whole, singles, 1e-6)


def test_a_run_goes_through_several_epochs(tmp_path, corpus):
    length = ("--training.steps=none", "--training.epochs=2.5", "--checkpoint.every-steps=100")
    run_tiny(tmp_path, *encoder("bert"), *on_corpus(corpus), *length)
    rows = read(tmp_path / "run" / "metrics.jsonl")
    losses = [row["mlm"] for row in rows if row["kind"] == "train"]
    assert len(losses) > 20 and losses[-1] < losses[0] - 0.5


def test_terms_and_shares_are_in_the_rows(tmp_path, corpus):
    for row in run(tmp_path / "bert", corpus, "bert"):
        assert row["loss"] == pytest.approx(row["mlm"] + row["nsp"])
        assert 0 <= row["mlm_accuracy"] <= 1 and 0 <= row["nsp_accuracy"] <= 1
    for row in run(tmp_path / "roberta", corpus, "roberta"):
        assert row["loss"] == row["mlm"] and "nsp" not in row


def test_what_is_held_out_is_masked_alike_whatever_the_seed(tmp_path, corpus):
    first, second = (run(tmp_path / seed, corpus, "bert", f"--training.seed={seed}") for seed in "12")
    for rows, others in zip(first, second, strict=True):
        assert (rows["tokens"] == others["tokens"]) == (rows["kind"] == "validation")


def test_the_auto_layout_goes_by_the_lengths(tmp_path, corpus, capfd):
    run(tmp_path, corpus, "bert")
    assert "unpadded; " in capfd.readouterr().err


def test_tasks_in_the_course_of_a_training_choose_the_best(tmp_path, corpus):
    tasks = ("--evaluation.tasks=masked_lm,pseudo_perplexity", "--checkpoint.best-by=masked_lm/accuracy")
    rows = run(tmp_path, corpus, "bert", *tasks, "--checkpoint.every-steps=4", "--optimizer.learning-rate=3e-2")
    values = {(row["step"], row["metric"]): row["value"] for row in rows if row["kind"] == "task"}
    assert {step for step, _ in values} == {4, 8}
    for row in rows:
        if row["kind"] == "validation":
            for metric, term in TERMS.items():
                assert values[row["step"], metric] == pytest.approx(row[term])
    accuracies = {step: value for (step, metric), value in values.items() if metric == "accuracy"}
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-00000008" / "state.json").read_text())
    assert state["best_by"] == "masked_lm/accuracy"
    assert (state["best_step"], state["best_value"]) == max(accuracies.items(), key=lambda pair: (pair[1], -pair[0]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("--evaluation.tasks=bits_per_byte",),
            "'bits_per_byte' is for decoders, but .*run is an encoder: use one of",
        ),
        (("--evaluation.tasks=lambda",), "there is no task 'lambda'"),
        (
            ("--evaluation.tasks=masked_lm", "--checkpoint.best-by=masked_lm/accurracy"),
            "no metric 'accurracy' .*did you mean \"accuracy\"",
        ),
    ],
)
def test_tasks_of_decoders_are_refused_before_the_training(tmp_path, corpus, overrides, message):
    with pytest.raises(UserError, match=message) as caught:
        run(tmp_path, corpus, "bert", *overrides)
    assert "\n" not in str(caught.value)
    assert read(tmp_path / "run" / "metrics.jsonl") == []
    assert run(tmp_path, corpus, "bert")[-1]["step"] == 8


def test_tasks_of_encoders_are_refused_by_a_decoder(tmp_path):
    with pytest.raises(
        UserError, match=r"'masked_lm' is for encoders, but .*run is a decoder: use one of bits_per_byte"
    ):
        run_tiny(tmp_path, "--evaluation.tasks=masked_lm")


@pytest.mark.parametrize(
    ("family", "corpus_of", "message"),
    [
        ("bert", "documents", "corpus build --sequences sentences` or lines, or train without pairs"),
        ("bert", "decoders", r"the tokenizer has no token \[CLS\] or <s>.*\[MASK\] or <mask>"),
    ],
)
def test_an_unsuitable_corpus_is_an_error(tmp_path, family, corpus_of, message):
    if corpus_of == "documents":
        corpus = build_sentences(tmp_path / "corpus", sequences="documents")
    else:
        corpus = tmp_path / "corpus"
        build_tiny(corpus)
    with pytest.raises(UserError, match=message) as caught:
        run(tmp_path, corpus, family)
    assert "\n" not in str(caught.value)
