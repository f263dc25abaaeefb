import io
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_text import READ_TEXTS, TEXTS, tiny_tokenizer, write_texts

from hornbook.__main__ import main
from hornbook.corpora.building.token_pipeline import falls_to_validation
from hornbook.text.tokenizer import Tokenizer


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts")
    tiny_tokenizer().save(tmp_path / "tok")
    return tmp_path


@pytest.fixture
def pipe(place, monkeypatch, capsysbinary):
    """Run a subcommand with bytes on standard input; return its exit code, output and errors."""

    def run(subcommand, data, *words):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(["tokenizer", subcommand, "--tokenizer", "tok", *words])
        captured = capsysbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return run


def test_train(place, capsys):
    assert main(["tokenizer", "train", "texts", "--vocab-size", "300", "--output", "new/tok", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert Tokenizer.load("new/tok").digest == Tokenizer.train(READ_TEXTS, 300).digest == result["digest"]
    assert (result["vocab_size"], result["documents"], result["output"]) == (300, len(TEXTS), "new/tok/tokenizer.json")
    assert main(["tokenizer", "train", "texts", "--vocab-size", "300", "--output", "new/tok"]) == 0
    assert "300 tokens, from 60 documents" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--kind", "roberta"), ("--kind", "wordpiece"), ("--kind", "wordpiece", "--cased")])
def test_train_other_kinds(place, capsys, words):
    assert main(["tokenizer", "train", "texts", "--vocab-size", "300", *words, "--output", "other", "--json"]) == 0
    expected = Tokenizer.train(READ_TEXTS, 300, kind=words[1], lowercase="--cased" not in words)
    assert json.loads(capsys.readouterr().out)["digest"] == expected.digest == Tokenizer.load("other").digest


def test_train_leaves_out_what_a_corpus_holds_out(place, capsys):
    words = ["tokenizer", "train", "texts", "--vocab-size", "300", "--json"]
    assert main([*words, "--validation", "0.5", "--output", "half"]) == 0
    seen = [text for text in READ_TEXTS if not falls_to_validation(text, 0.5)]
    assert 0 < len(seen) < len(TEXTS)
    expected = Tokenizer.train(seen, 300)
    result = json.loads(capsys.readouterr().out)
    assert result["digest"] == expected.digest != tiny_tokenizer().digest
    assert (result["documents"], result["held_out"]) == (len(seen), len(TEXTS) - len(seen))


def test_train_takes_the_options_of_inputs(place, capsys):
    (place / "texts" / "bad.txt").write_bytes(b"\xff")
    words = ["texts", "--suffix", ".txt", "--exclude", "1*", "--on-error", "skip", "--output", "few", "--json"]
    assert main(["tokenizer", "train", *words]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["documents"], result["faults"]) == (9, 1) and "bad.txt: not UTF-8" in captured.err
    assert "the text gave no more than" in captured.err and result["vocab_size"] < 4096


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["texts", "--vocab-size", "256", "--output", "x"], "--vocab-size 256 is out of range: expected 257"),
        (["nothing", "--output", "x"], "nothing: no such file"),
        (["empty.txt", "--output", "x"], "no text to train"),
        (["texts", "--vocab-size", "290", "--output", "tok"], "already contains another tokenizer"),
        (["texts", "--vocab-size", "many", "--output", "x"], "--vocab-size"),
        (["texts", "--kind", "wordpiece", "--vocab-size", "99", "--output", "x"], "99 is out of range: expected 100"),
        (["texts", "--kind", "wordpiece", "--vocab-size", "300", "--output", "tok"], "already contains another"),
        (["texts", "--kind", "sentencepiece", "--output", "x"], "--kind"),
        (["texts", "--cased", "--output", "x"], "--cased applies only to --kind wordpiece"),
        (["texts", "--output", "empty.txt/x"], "empty.txt is a file: choose another --output"),
        (["texts", "--output", "/dev/null/x/y"], "/dev/null is a file: choose another --output"),
        (["texts", "--output", "x" * 300], "File name too long"),
    ],
)
def test_mistakes_in_training(place, capsys, words, part):
    (place / "empty.txt").write_bytes(b"")
    before = (place / "tok" / "tokenizer.json").read_bytes()
    assert main(["tokenizer", "train", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and part in captured.err
    assert (place / "tok" / "tokenizer.json").read_bytes() == before and not (place / "x").exists()


def test_a_line_of_ids_for_a_line_of_text(pipe):
    lines = ["the cat", "", " <|endoftext|>\r", "é😀"]
    code, output, errors = pipe("encode", "\n".join(lines).encode())
    tokenizer = tiny_tokenizer()
    assert (code, errors) == (0, "")
    assert output.decode().split("\n") == [" ".join(map(str, tokenizer.encode(line))) for line in lines]
    assert pipe("decode", output) == (0, "\n".join(lines).encode(), "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\n\r\x1c\x85 "))))
def test_decode_undoes_encode(pipe, text):
    code, ids, _ = pipe("encode", text.encode())
    assert code == 0
    assert pipe("decode", ids) == (0, text.encode(), "")


def test_json_has_the_ids_and_the_texts(pipe):
    ids = [tiny_tokenizer().encode(text) for text in ("the cat", "", "sat")]
    code, output, errors = pipe("encode", b"the cat\n\nsat\n", "--json")
    count = sum(map(len, ids))
    assert (code, errors, json.loads(output)) == (0, "", {"lines": 3, "tokens": count, "ids": ids})
    lines = "".join(" ".join(map(str, line)) + "\n" for line in ids).encode()
    code, output, errors = pipe("decode", lines, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output) == {"lines": 3, "tokens": count, "texts": ["the cat", "", "sat"]}


@pytest.mark.parametrize(
    ("subcommand", "data", "part"),
    [
        ("encode", b"good\nb\xffd\n", "line 2: not UTF-8 at byte 1"),
        ("decode", b"1 2\n3 x\n", "line 2: 'x' is not a token id; expected 0 to 299"),
        ("decode", b"300", "line 1: '300' is not a token id"),
        ("decode", b"-1", "line 1: '-1' is not a token id"),
        ("decode", b"1.5", "line 1: '1.5' is not a token id"),
        ("decode", "٣".encode(), "line 1: '٣' is not a token id"),
        ("decode", b"9" * 5000, "is not a token id"),
        ("decode", b"1\n\n\xff", "line 3: not UTF-8 at byte 0"),
    ],
)
def test_malformed_lines(pipe, subcommand, data, part):
    code, _, errors = pipe(subcommand, data)
    assert code == 2 and errors.count("\n") == 1
    assert errors.startswith("hornbook: error: standard input, line ") and part in errors


def test_a_line_that_is_too_long(pipe, monkeypatch):
    monkeypatch.setattr("hornbook.cli.tokenizer_command._MAX_LINE_BYTES", 10)
    code, output, errors = pipe("encode", b"0123456789"[:9] + b"\n" + b"x" * 11)
    assert code == 2 and output.count(b"\n") == 1 and "line 2: longer than" in errors


def test_a_tokenizer_that_is_not_there(place, capsys):
    assert main(["tokenizer", "encode", "--tokenizer", "texts"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


def test_word_pieces_line_by_line(pipe, place):
    tokenizer = Tokenizer.train(TEXTS, 100, kind="wordpiece")
    (place / "bert").mkdir()
    (place / "bert" / "vocab.txt").write_text("".join(f"{token}\n" for token in tokenizer.vocab))
    lines = ["the Cat [MASK]", "", "story 7: sat"]
    code, output, _ = pipe("encode", "\n".join(lines).encode(), "--tokenizer", "bert")
    assert code == 0 and 4 not in map(int, output.split())
    assert output.decode().split("\n") == [" ".join(map(str, tokenizer.encode(line))) for line in lines]
    code, output, _ = pipe("decode", output, "--tokenizer", "bert/vocab.txt")
    assert code == 0 and output.decode().split("\n")[1:] == ["", "story 7 : sat"]
