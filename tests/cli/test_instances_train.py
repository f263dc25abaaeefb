"""Training on files of instances: three formats, one run; masked when they were made, or here."""

import json
import shutil

import pytest
from tiny_encoder_runs import encoder_tokenizer
from tiny_lines import build_lines, line_tokenizer

from hornbook.cli.main import main
from hornbook.interop.convert.bert_arrow import read_arrow, write_arrow
from hornbook.interop.convert.bert_instances import Instances
from hornbook.track.metrics import read

FORMATS = {"plain": "bert-tfrecord", "remasked": "bert-tfrecord-remasked", "arrow": "bert-arrow"}
BERT = "--model.num-layers=1 --model.hidden-size=16 --model.num-heads=2 --model.max-positions=40"
RUN = "--data.sequence-length=40 --training.global-batch-size=4 --training.micro-batch-size=2 --training.steps=4"
LOG = "--tracking.log-every-steps=1 --checkpoint.every-steps=2 --threads=1"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the same instances in all formats, a tokenizer, and instances that are not masked."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("instances")
    store = build_lines(folder)
    for name, format_name in FORMATS.items():
        target = folder / (name if name == "arrow" else f"{name}.tfrecord")
        sizes = ("--sequence-length", "40", "--max-predictions", "6", "--duplicates", "2")
        assert main(["corpus", "instances", store, str(target), "--format", format_name, *sizes]) == 0
    write_arrow(folder / "unmasked", unmasked(read_arrow(folder / "arrow")))
    line_tokenizer().save(folder / "tokenizer")
    encoder_tokenizer("roberta").save(folder / "others")
    return folder


def unmasked(instances):
    """The same instances with what was under the masks, and nothing to predict."""

    def restored():
        for instance in instances:
            tokens = instance.tokens.copy()
            tokens[instance.positions] = instance.labels
            yield instance._replace(tokens=tokens, positions=instance.positions[:0], labels=instance.labels[:0])

    return Instances(files=instances.files, read=restored, sequence_length=instances.sequence_length)


def train(data, run, *words, vocab="--model.vocab-size=100"):
    """Exit code of a run of four steps with a checkpoint after each second one."""
    given = [vocab, f"--data.train={data}", f"--output={run}", "--objective.max-predictions=6", *words]
    return main(["train", "bert-tiny", *f"{BERT} {RUN} {LOG}".split(), *given])


def losses(run):
    return [row["loss"] for row in read(run / "metrics.jsonl") if row["kind"] == "train"]


def weights(run):
    return (run / "checkpoints" / "step-00000004" / "model-00000.safetensors").read_bytes()


def path_of(folder, name):
    return folder / (name if name == "arrow" else f"{name}.tfrecord")


def test_the_formats_give_the_same_run(made, tmp_path):
    for name in FORMATS:
        assert train(path_of(made, name), tmp_path / name) == 0
    first = losses(tmp_path / "plain")
    assert len(first) == 4 and 4 < first[0] < 7  # log(100) + log(2) = 5.3
    for name in ("remasked", "arrow"):
        assert losses(tmp_path / name) == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("name", [*FORMATS, "unmasked"])
def test_a_resumed_run_is_the_same_bit_by_bit(made, tmp_path, name):
    words = [f"--data.tokenizer={made}/tokenizer"] if name == "unmasked" else []
    path = made / name if name == "unmasked" else path_of(made, name)
    assert train(path, tmp_path / "whole", *words) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "step-00000004")
    assert train(path, tmp_path / "resumed", *words) == 0
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")
    assert losses(tmp_path / "resumed") == losses(tmp_path / "whole")


def test_held_out_instances_are_scored(made, tmp_path):
    assert (
        train(made / "arrow", tmp_path / "run", f"--data.validation={made}/plain.tfrecord", "--data.layout=packed") == 0
    )
    (row,) = [
        row for row in read(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "validation" and row["step"] == 4
    ]
    assert 4 < row["loss"] < 7 and 0 <= row["nsp_accuracy"] <= 1


def test_unmasked_instances_are_masked_differently_in_each_epoch(made, tmp_path):
    words = (f"--data.tokenizer={made}/tokenizer", "--objective.whole-words=true", "--objective.max-predictions=none")
    assert train(made / "unmasked", tmp_path / "run", *words, vocab="--model.vocab-size=none") == 0
    assert (tmp_path / "run" / "checkpoints" / "step-00000004" / "tokenizer.json").exists()
    assert all(4 < loss < 7 for loss in losses(tmp_path / "run"))


@pytest.mark.parametrize("name", ["plain", "arrow", "unmasked"])
def test_which_names_the_record(made, tmp_path, capsys, name):
    path = made / name if name == "unmasked" else path_of(made, name)
    tokenizer = f"--data.tokenizer={made}/tokenizer"
    assert train(path, tmp_path / "run", tokenizer) == 0
    capsys.readouterr()
    assert main(["corpus", "which", str(tmp_path / "run"), "--step", "3", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    instances = list(read_arrow(made / ("unmasked" if name == "unmasked" else "arrow")))
    for sample in samples:
        instance = instances[sample["record"]]
        assert sample["store"].startswith(str(path)) and sample["pair_label"] == instance.next_sentence_label
        assert sample["text"].startswith("[CLS]") and "→" in sample["text"]
        if name != "unmasked":
            assert (sample["tokens"], sample["positions"]) == (instance.tokens.tolist(), instance.positions.tolist())
            assert sample["labels"] == instance.labels.tolist()
        else:
            for place, label in zip(sample["positions"], sample["labels"], strict=True):
                sample["tokens"][place] = label
            assert sample["tokens"] == instance.tokens.tolist()


@pytest.mark.parametrize(
    ("data", "words", "message"),
    [
        ("plain.tfrecord", ["--data.sequence-length=32"], "instances of 40 tokens, but data.sequence_length is 32"),
        ("plain.tfrecord", ["--objective.max-predictions=5"], "at most 6 predictions each"),
        ("arrow", ["--objective.mask-probability=0.2"], "objective.mask_probability has no effect on instances that"),
        ("arrow", ["--objective.whole-words=true"], "objective.whole_words has no effect"),
        ("arrow", ["--objective.short-sequence-probability=0.3"], "short_sequence_probability has no effect"),
        ("plain.tfrecord,remasked.tfrecord", [], "cannot be blended"),
        ("plain.tfrecord", ["--model.vocab-size=50"], "but model.vocab_size 50"),
        ("plain.tfrecord", ["--model.vocab-size=none"], "add --model.vocab-size N"),
        ("unmasked", [], "has instances without masks: name the tokenizer that made them by --data.tokenizer FOLDER"),
        ("plain.tfrecord", ["--data.validation=unmasked"], "unmasked has instances without masks"),
        ("unmasked", ["--data.tokenizer=nowhere"], "nowhere"),
        ("arrow", ["--objective.max-predictions=1"], "masked tokens, but objective.max_predictions is 1: set"),
        ("plain.tfrecord", ["--data.tokenizer=others"], "others: it begins with token 2, but the tokenizer"),
        ("missing.tfrecord", ["--data.tokenizer=tokenizer"], "missing.tfrecord: no such token store"),
        ("unmasked", ["--data.tokenizer=tokenizer", "--objective.short-sequence-probability=0.3"], "already cut"),
        ("corpus", ["--data.tokenizer=tokenizer", "--model.vocab-size=none"], "store records its own tokenizer"),
        ("plain.tfrecord", ["--data.tokenizer=tokenizer", "--model.vocab-size=50"], "were made with 100 tokens"),
    ],
)  # fmt: skip
def test_one_line_for_a_mistake(made, tmp_path, capsys, monkeypatch, data, words, message):
    monkeypatch.chdir(made)
    capsys.readouterr()
    assert train(data, tmp_path / "run", *words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1] and lines[-1].startswith("hornbook: error: ")
    assert not any("Traceback" in line for line in lines)


def test_a_tokenizer_for_nothing_is_refused(capsys):
    words = "train demo --data.synthetic=true --data.tokenizer=x --training.steps=1 --model.vocab-size=70"
    assert main(words.split()) == 2
    assert "data.tokenizer" in capsys.readouterr().err


def test_masks_in_the_middle_of_an_unmasked_file(made, tmp_path, capsys):
    whole, masked = list(unmasked(read_arrow(made / "arrow"))), list(read_arrow(made / "arrow"))
    mixed = (whole * 70)[:70] + masked
    write_arrow(tmp_path / "mixed", Instances(files=(), read=lambda: iter(mixed), sequence_length=40))
    words = (f"--data.tokenizer={made}/tokenizer", "--training.global-batch-size=64", "--training.steps=2")
    assert train(tmp_path / "mixed", tmp_path / "run", *words) == 2
    assert "is masked, the first ones are not" in capsys.readouterr().err.splitlines()[-1]


def test_segments_that_the_model_does_not_have(made, tmp_path, capsys):
    def marked():
        for instance in read_arrow(made / "arrow"):
            yield instance._replace(segments=instance.segments * 3)

    content = read_arrow(made / "arrow")
    forged = Instances(files=content.files, read=marked, sequence_length=content.sequence_length)
    write_arrow(tmp_path / "forged", forged)
    assert train(tmp_path / "forged", tmp_path / "run") == 2
    told = capsys.readouterr().err
    assert "the data contain segment 3, but model.num_segments 2 allows only 0 to 1" in told and "Error:" not in told
    assert train(made / "arrow", tmp_path / "held", f"--data.validation={tmp_path}/forged") == 2
    assert "the data contain segment 3" in capsys.readouterr().err
    assert train(tmp_path / "forged", tmp_path / "more", "--model.num-segments=4", "--training.steps=1") == 0
