import json
from pathlib import Path

import numpy as np
import pytest
from tiny_text import build_tiny, tiny_tokenizer

from hornbook.__main__ import main
from hornbook.corpora.store import open_store


@pytest.fixture
def corpus(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    build_tiny(tmp_path / "corpus")
    tiny_tokenizer().save(tmp_path / "tok")
    return open_store("corpus", "train")


def convert(*words):
    return main(["corpus", "convert", *words])


def test_there_and_back(corpus, capsys):
    assert convert("corpus", "x.tfrecord", "--split", "train", "--verify") == 0
    printed = capsys.readouterr()
    assert f"{corpus.num_documents} documents, {corpus.num_tokens:,} tokens" in printed.out
    assert "tfrecord from store, corpus" in printed.out and "verified: source and target are equal" in printed.out
    words = ("--to", "store", "--tokenizer", "tok", "--end-of-text", "stored", "--verify")
    assert convert("x.tfrecord", "back", *words) == 0
    assert open_store("back").fingerprint == corpus.fingerprint
    assert main(["corpus", "verify", "back"]) == 0


def test_every_option_acts(corpus, capsys):
    def report(*words):
        assert convert(*words, "--json") == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    plain = report("corpus/train", "a.pkl")
    assert (plain["kind"], plain["target_format"], plain["verified"]) == ("documents", "pickle", False)
    assert plain["items"] == corpus.num_documents and plain["seconds"] >= 0
    words = ("--from", "pickle", "--to", "tfrecord", "--sequence-length", "40", "--records-per-file", "3")
    cut = report("a.pkl", "b", *words, "--verify")
    assert cut["items"] == corpus.num_tokens // 40 and cut["verified"]
    assert cut["left_out_tokens"] == corpus.num_tokens % 40
    assert report("a.pkl", "c.npy", "--sequence-length", "40", "--stride", "20")["items"] > cut["items"]
    cropped = report("a.pkl", "d.npy", "--sequence-length", "9", "--crop")
    assert cropped["items"] == (corpus.document_lengths >= 9).sum() < corpus.num_documents
    assert cropped["left_out_documents"] == corpus.num_documents - cropped["items"]
    split = report("b", "e.pkl", "--split-at-end-of-text", "--end-of-text-id", "299")
    kept = corpus.indexed.tokens[: cut["tokens"]]
    assert split["items"] == (kept == 299).sum() + (kept[-1] != 299) > 3
    without = report("a.pkl", "f.bin", "--end-of-text", "inserted", "--tokenizer", "tok")
    assert without["tokens"] == corpus.num_tokens - corpus.num_documents


@pytest.mark.parametrize("kind", ["nanogpt", "llm.c", "npy"])
def test_streams_of_others_become_a_store(corpus, capsys, kind):
    tokens = np.asarray(corpus.indexed.tokens)
    data = tokens.astype("<u2").tobytes()
    header = np.array([20240520, 1, len(tokens)] + 253 * [0], dtype="<i4").tobytes()
    name = "train.npy" if kind == "npy" else "train.bin"
    if kind == "npy":
        np.save(name, tokens)
    else:
        Path(name).write_bytes(header + data if kind == "llm.c" else data)
    for command in (("corpus", "inspect", name), ("train", "gpt2-small", "--data.train", name, "--output", "run")):
        assert main(list(command)) == 2
        assert f"{name} FOLDER --to store --tokenizer TOKENIZER" in capsys.readouterr().err
    words = ("--to", "store", "--tokenizer", "tok", "--end-of-text", "stored", "--split-at-end-of-text", "--verify")
    assert convert(name, "back", *words, *(("--from", kind) if kind == "nanogpt" else ())) == 0
    assert open_store("back").fingerprint == corpus.fingerprint
    assert main(["corpus", "verify", "back"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing", "x.npy"), "no such file"),
        (("corpus", "x.npy"), "choose one with --split"),
        (("corpus", "x", "--split", "train"), "x: no format has this suffix; set it with --to"),
        (("corpus", "corpus", "--to", "store"), "exists already"),
        (("corpus", "x", "--to", "bert-arrow"), "store has documents"),
        (("corpus", "x", "--split", "train", "--to", "nanogpt"), '"nanogpt" is not one of store'),
        (("corpus", "x", "--to", "megatrn"), 'did you mean "megatron"'),
        (("corpus", "x.npy", "--split", "train", "--tokenizer", "nowhere"), "nowhere"),
        (("corpus", "x.npy", "--split", "train", "--stride", "0"), "--stride"),
    ],
)
def test_mistakes_are_one_line(corpus, capsys, words, message):
    assert convert(*words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("hornbook: error: ") and message in lines[0]
