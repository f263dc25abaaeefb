"""``hornbook embed``: a vector for each text, as JSON lines or as one array."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_encoder_runs import encoder_contents
from tiny_labelled import labelled_rows, word_pieces, write_jsonl
from written_runs import save_run

import hornbook
from hornbook.__main__ import main
from hornbook.checkpoint import save
from hornbook.errors import UserError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, a decoder, texts."""
    folder = tmp_path_factory.mktemp("home")
    save(folder / "bert" / "checkpoints", encoder_contents("bert", word_pieces()))
    save_run(folder / "gpt")
    write_jsonl(folder / "texts.jsonl", labelled_rows(3))
    (folder / "texts.txt").write_text("".join(f"{row['text']}\n" for row in labelled_rows(3)))
    (folder / "empty.txt").write_text("")
    return folder


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def embed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    capsys.readouterr()
    assert main(["embed", *words, "--threads", "1"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("run", ["bert", "gpt"])
def test_the_array_holds_what_the_lines_say(capsys, run):
    rows = np.array([row["embedding"] for row in embed(capsys, run, "texts.txt")], dtype=np.float32)
    assert embed(capsys, run, "texts.jsonl", "--output", "vectors.npy") == []
    vectors = np.load("vectors.npy")
    assert vectors.dtype == np.float32 and np.array_equal(vectors, rows) and len(rows) == len(labelled_rows(3))
    embed(capsys, run, "texts.jsonl", "--output", "vectors.npy", "--batch-size", "1")
    np.testing.assert_allclose(np.load("vectors.npy"), vectors, atol=2e-6)
    assert embed(capsys, run, "texts.jsonl", "--output", "vectors.jsonl") == []
    lines = [json.loads(line) for line in Path("vectors.jsonl").read_text().splitlines()]
    assert np.array_equal(np.array([line["embedding"] for line in lines], dtype=np.float32), rows)


def test_vectors_of_length_one(capsys):
    (result,) = embed(capsys, "bert", "texts.txt", "--pooling", "cls", "--normalize", "--json")
    vectors = np.array([row["embedding"] for row in result["results"]])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    assert vectors.shape == (result["count"], result["size"])
    (result,) = embed(capsys, "bert", "texts.txt", "--json", "--output", "v.npy")
    assert result["output"] == "v.npy" and "results" not in result


def test_a_text_is_truncated_to_the_window(capsys):
    (Path("long.txt")).write_text("the white whale swims in the sea\nthe white\n")
    first, second = embed(capsys, "bert", "long.txt", "--window", "4")
    assert first["embedding"] == pytest.approx(second["embedding"], abs=1e-6)
    capsys.readouterr()
    assert main(["embed", "bert", "long.txt", "--window", "4", "--json", "--threads", "1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["truncated"] == 1
    assert "1 of 2 texts is longer than 4 tokens" in " ".join(printed.err.split())
    assert embed(capsys, "bert", "texts.txt", "--json")[0]["truncated"] == 0


@pytest.mark.parametrize("run", ["bert", "gpt"])
def test_python_gives_the_same_vectors(capsys, run, caplog):
    model = hornbook.load(run, device="cpu", compute="fp32")
    long = "the white whale swims in the sea " * 30
    texts = [long, "the [MASK] whale", "the white"]
    Path("mixed.txt").write_text("".join(f"{text.strip()}\n" for text in texts))
    for words, options in (([], {}), (["--window", "6"], {"window": 6})):
        rows = [row["embedding"] for row in embed(capsys, run, "mixed.txt", *words)]
        caplog.clear()
        found = model.embed([text.strip() for text in texts], **options)
        np.testing.assert_allclose(found.numpy(), np.array(rows, dtype=np.float32), atol=2e-6)
        (record,) = caplog.records
        assert "of 3 texts" in record.message and "embedded without the end" in record.message
    ids = model.tokenizer.encode(long)
    with pytest.raises(UserError, match="expected 1 to"):
        model.embed(ids)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["gpt", "texts.txt", "--pooling", "cls"],
            "--pooling cls is not for a decoder; expected one of mean, max, last",
        ),
        (
            ["bert", "texts.txt", "--pooling", "last"],
            "--pooling last is not for an encoder; expected one of mean, cls, max",
        ),
        (["bert", "empty.txt"], "empty.txt: the file has no examples"),
        (["bert", "texts.jsonl", "--text", "txt"], "'txt' is missing (columns: 'text', 'label')"),
        (["bert", "texts.txt", "--window", "2"], "2 tokens are too few for [CLS], a text and [SEP]"),
        (
            ["bert", "texts.txt", "--output", "no/vectors.npy"],
            "cannot create no/vectors.npy: there is no folder no; check the path",
        ),
        (["bert", "texts.txt", "--output", "no/lines"], "cannot open no/lines: there is no folder no; check the path"),
        (["bert", "texts.txt", "--output", "texts.txt"], "--output texts.txt is the input file"),
    ],
)
def test_what_cannot_be_embedded_is_reported_on_one_line(capsys, words, message):
    assert main(["embed", *words, "--threads", "1"]) == 2
    found = capsys.readouterr()
    assert found.out == "" and message in found.err and len(found.err.splitlines()) == 1
