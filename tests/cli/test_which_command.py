import gzip
import json
import re
from itertools import pairwise

import pytest
from tiny_lines import build_lines
from tiny_text import build_tiny

import hornbook
from hornbook.__main__ import main
from hornbook.corpora.store import open_store


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps of two samples on one corpus."""
    folder = tmp_path_factory.mktemp("which")
    build_tiny(folder / "corpus")
    sizes = "--model.num-layers 1 --model.hidden-size 16 --model.num-heads 2 --model.max-positions 48"
    length = "--data.sequence-length 48 --training.steps 2 --training.global-batch-size 2"
    words = f"train demo --data.train {folder}/corpus --model.vocab-size none {sizes} {length} "
    words += f"--training.micro-batch-size 2 --schedule.warmup-steps 0 --output {folder}/run"
    assert main(words.split()) == 0
    return folder / "run"


def which(capsys, *words):
    """Exit code, lines on standard output, text on standard error."""
    capsys.readouterr()
    code = main(["corpus", "which", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_every_sample_with_its_documents_and_the_beginning_of_their_texts(run, capsys):
    code, lines, _ = which(capsys, run, "--step", 2)
    heads = [line for line in lines if line.startswith("sample ")]
    assert (code, heads) == (0, [f"sample {number}: epoch 0 of {run.parent}/corpus" for number in (2, 3)])
    places = [line for line in lines if line.startswith("  document ")]
    assert places and all(", tokens " in line and " at byte " in line and "/texts/" in line for line in places)
    texts = [line for line in lines if line.startswith("    ")]
    assert len(texts) == len(places) and any("the cat" in text for text in texts)
    assert all(len(text) < 120 and text.isprintable() for text in texts)


def test_rows_of_a_table(tmp_path, capsys):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        arrow.table({"text": [f"the cat number {row}, " * 5 for row in range(9)]}), tmp_path / "t.parquet"
    )
    build_tiny(tmp_path / "corpus", inputs=[tmp_path / "t.parquet"], validation=0.0)
    words = f"train demo --data.train {tmp_path}/corpus --model.vocab-size none --output {tmp_path}/run --threads 1 "
    words += "--model.num-layers 1 --model.hidden-size 16 --model.num-heads 2 --data.sequence-length 16 "
    words += "--training.steps 1 --training.global-batch-size 2 --training.micro-batch-size 2 --schedule.warmup-steps 0"
    assert main(words.split()) == 0
    _, lines, _ = which(capsys, tmp_path / "run", "--step", 1)
    places = [line for line in lines if line.startswith("  document ")]
    assert places and all(re.search(r"document (\d), .*t\.parquet at row \1$", line) for line in places)


def test_pages_of_a_web_archive(tmp_path, capsys):
    def page(number):
        content = f"the cat number {number}, ".encode() * 5
        heads = f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: https://example.org/{number}\x1b[1m\r\n"
        heads += f"WARC-Identified-Content-Language: eng\r\nContent-Length: {len(content)}\r\n"
        return gzip.compress(f"{heads}Content-Type: text/plain\r\n\r\n".encode() + content + b"\r\n\r\n")

    archive = tmp_path / "crawl.warc.wet.gz"
    archive.write_bytes(b"".join(map(page, range(9))))
    build_tiny(tmp_path / "corpus", inputs=[archive], validation=0.0)
    words = f"train demo --data.train {tmp_path}/corpus --model.vocab-size none --output {tmp_path}/run --threads 1 "
    words += "--model.num-layers 1 --model.hidden-size 16 --model.num-heads 2 --data.sequence-length 16 "
    words += "--training.steps 1 --training.global-batch-size 2 --training.micro-batch-size 2 --schedule.warmup-steps 0"
    assert main(words.split()) == 0
    _, lines, _ = which(capsys, tmp_path / "run", "--step", 1)
    found = pairwise(lines)
    numbers = [re.search(r"document (\d)", line)[1] for line in lines if line.startswith("  document ")]
    pages = [after for before, after in found if before.startswith("  document ")]
    assert numbers and pages == [f"  page https://example.org/{number}\\x1b[1m (eng)" for number in numbers]
    _, lines, _ = which(capsys, tmp_path / "run", "--step", 1, "--json")
    pieces = [piece for sample in json.loads(lines[-1])["samples"] for piece in sample["pieces"]]
    assert [piece["url"] for piece in pieces] == [f"https://example.org/{number}\x1b[1m" for number in numbers]
    corpus = hornbook.corpus(tmp_path / "corpus")
    assert corpus.page(-1) == ("https://example.org/8\x1b[1m", "eng") and corpus.page(0).languages == "eng"
    archive.unlink()
    code, lines, _ = which(capsys, tmp_path / "run", "--step", 1, "--json")
    pieces = [piece for sample in json.loads(lines[-1])["samples"] for piece in sample["pieces"]]
    assert code == 0 and {piece["url"] for piece in pieces} == {None} and corpus.page(1) is None


def test_a_sequence_of_a_pair_with_its_masks(tmp_path, capsys):
    words = f"train bert-tiny --data.train {build_lines(tmp_path)} --output {tmp_path}/run --threads 1 "
    words += (
        "--model.num-layers 1 --model.hidden-size 16 --model.num-heads 2 --model.max-positions 40 --training.steps 2"
    )
    words += " --data.sequence-length 40 --training.global-batch-size 8 --training.micro-batch-size 8"
    assert main(words.split()) == 0
    code, lines, _ = which(capsys, tmp_path / "run", "--step", 2)
    assert code == 0 and [line.count("corpus") for line in lines if line.startswith("sample ")] == [1] * 8
    assert len([line for line in lines if "lines.txt at byte " in line]) == 16
    counts = [line for line in lines if " to predict; the second text " in line]
    assert len(counts) == 8 and {line.rpartition(" text ")[2] for line in counts} == {
        "follows the first",
        "is another document's",
    }
    _, lines, _ = which(capsys, tmp_path / "run", "--step", 2, "--full")
    shown = [line for line in lines if line.startswith("    [CLS]")]
    assert len(shown) == 8 and any("[MASK→" in line for line in shown)


def test_json_has_all(run, capsys):
    code, lines, _ = which(capsys, run, "--step", 1, "--json")
    found = json.loads(lines[-1])
    assert (code, found["step"], [sample["sample"] for sample in found["samples"]]) == (0, 1, [0, 1])
    store = open_store(run.parent / "corpus")
    for sample in found["samples"]:
        assert sum(piece["num_tokens"] for piece in sample["pieces"]) == 49
        for piece in sample["pieces"]:
            document = store.document(piece["document"]).tolist()
            assert piece["tokens"] == document[piece["start"] : piece["start"] + piece["num_tokens"]]
            assert piece["text"] == store.tokenizer().decode(piece["tokens"])


def test_one_sample_in_full(run, capsys):
    _, lines, _ = which(capsys, run, "--step", 2, "--json")
    sample = json.loads(lines[-1])["samples"][1]
    code, lines, _ = which(capsys, run, "--step", 2, "--sample", 3, "--full")
    shown = "".join(line[4:] for line in lines if line.startswith("    "))
    whole = "".join(piece["text"] for piece in sample["pieces"])
    assert code == 0 and lines[0].startswith("sample 3: ")
    assert shown.replace("\\r", "") == whole.replace("\r", "").replace("\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "3"], "has 2 steps: expected a step from 1 to 2, not 3"),
        (["--step", "0"], "must be at least 1"),
        (["--step", "1", "--sample", "2"], "step 1 has samples 0 to 1: expected one of them, not 2"),
        ([], "--step"),
    ],
)
def test_one_line_for_a_mistake(run, capsys, words, message):
    code, _, errors = which(capsys, run, *words)
    assert code == 2 and message in errors
    assert len(errors.splitlines()) == 1


def test_no_such_run(tmp_path, capsys):
    code, _, errors = which(capsys, tmp_path / "none", "--step", 1)
    assert code == 2 and errors.startswith("hornbook: error: no run in ") and len(errors.splitlines()) == 1
