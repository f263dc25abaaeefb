import json
import os
import re
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tiny_sentences import sentence_starts
from tiny_text import READ_TEXTS, SHARED, TEXTS, tiny_tokenizer, write_texts

from hornbook.__main__ import main
from hornbook.cli.corpus_build import report_lines as _lines
from hornbook.cli.table import Point, progress_line, token_progress
from hornbook.corpora.building import batches, parts
from hornbook.corpora.building.builder import BuildReport
from hornbook.corpora.building.parts import SplitCounts
from hornbook.corpora.store import open_store
from hornbook.samples.windows import Stream
from hornbook.text.tokenizer import Tokenizer

BERT_SAMPLE = SHARED / "text" / "bert_sample_text.txt"
SENTENCES = "The cat sat. It was a mat.\n\nThe dog ran."


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A working folder with a folder of texts and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts")
    tiny_tokenizer().save(tmp_path / "tok")
    return tmp_path


def build(*words, tokenizer="tok", output="out"):
    return main(["corpus", "build", *words, "--tokenizer", tokenizer, "--output", output])


def interrupt_at(monkeypatch, number):
    """Press Ctrl-C while the batch of this number is tokenized; return how many were."""
    calls, encode_batch = [], Tokenizer.encode_batch

    def encode(self, some):
        calls.append(some)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGINT)
        return encode_batch(self, some)

    monkeypatch.setattr(Tokenizer, "encode_batch", encode)
    return calls


def test_ctrl_c_says_how_to_resume(texts, capsys, monkeypatch):
    monkeypatch.setattr(batches, "BATCH_BYTES", 500)
    monkeypatch.setattr(parts, "BATCHES_PER_PART", 2)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt_at(monkeypatch, 7)
        assert build("texts") == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    notice, interrupted = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"hornbook: kept [23] finished parts: run the same command to resume, or remove .*out.building to discard them",
        notice,
    )
    assert interrupted == "hornbook: error: interrupted"
    assert build("texts", "--json") == 0
    captured = capsys.readouterr()
    assert re.match(r"hornbook: resuming after [23] finished parts of an interrupted build", captured.err)
    assert json.loads(captured.out)["splits"]["train"]["documents"] == len(TEXTS)
    assert main(["corpus", "verify", "out"]) == 0


def test_sentences(texts, capsys):
    pytest.importorskip("sentencex")
    (texts / "a.txt").write_text(SENTENCES)
    assert build("a.txt", "--sequences", "sentences", "--json") == 0
    store, tokenizer = open_store("out"), tiny_tokenizer()
    assert (store.num_documents, store.num_sequences, store.end_of_text, store.sequences) == (
        1,
        3,
        "inserted",
        "sentences",
    )
    assert store.end_of_text_id == tokenizer.end_of_text_id and tokenizer.decode(store.document(0)) == SENTENCES
    ends = sentence_starts(store, 0)
    assert tokenizer.decode(store.read(0, 0, ends[1])) == "The cat sat."
    assert main(["corpus", "verify", "out"]) == 0
    assert build("a.txt", "--sequences", "sentences", "--sentence-language", "de") == 2
    assert "with other options" in capsys.readouterr().err


def test_a_language_without_rules_for_its_sentences(texts, capsys):
    pytest.importorskip("sentencex")
    assert build("texts", "--sequences", "sentences", "--sentence-language", "zh") == 0
    assert "hornbook: no rules for 'zh'; sentences are split by the rules for English\n" in capsys.readouterr().err


def test_lines(texts):
    (texts / "a.txt").write_text("one line\nanother. line\n\n")
    assert build("a.txt", "--sequences", "lines") == 0
    store = open_store("out")
    assert (store.num_sequences, store.end_of_text, store.sequences) == (2, "inserted", "sentences")
    assert tiny_tokenizer().decode(store.document(0)) == "one line\nanother. line\n\n"


def test_documents_between_blank_lines_with_a_sentence_a_line(texts, capsys):
    content = "one line\nanother. line\n\n\nthe cat\nsat\non the mat\n"
    (texts / "a.txt").write_text(content)
    words = ("a.txt", "--from", "blank-lines", "--sequences", "lines")
    assert build(*words) == 0
    store, tokenizer = open_store("out"), tiny_tokenizer()
    found = [
        [tokenizer.decode(store.read(number, start, end - start)) for start, end in pairwise(ends)]
        for number, ends in ((number, sentence_starts(store, number)) for number in range(store.num_documents))
    ]
    assert [[line.strip() for line in lines] for lines in found] == [
        ["one line", "another. line"],
        ["the cat", "sat", "on the mat"],
    ]
    assert main(["corpus", "verify", "out"]) == 0
    capsys.readouterr()
    assert build("a.txt", "--from", "blank-lines") == 2
    assert "with other options" in capsys.readouterr().err
    assert build(*words) == 0


@pytest.mark.skipif(not BERT_SAMPLE.exists(), reason=f"{BERT_SAMPLE} is not there")
def test_the_sample_text_of_bert(texts, capsys):
    words = ("--from", "blank-lines", "--sequences", "lines")
    assert build(str(BERT_SAMPLE), *words, tokenizer=str(SHARED / "tokenizers" / "bert-base-uncased")) == 0
    store, blocks = open_store("out"), BERT_SAMPLE.read_text().strip().split("\n\n")
    assert (store.num_documents, store.sequences, store.end_of_text) == (len(blocks), "sentences", "absent")
    assert np.diff(store.indexed.document_index).tolist() == [len(block.splitlines()) for block in blocks]
    capsys.readouterr()
    for command in ("inspect", "verify"):
        assert main(["corpus", command, "out"]) == 0
        assert "3 documents, 31 sentences (10.3 a document)" in capsys.readouterr().out


def test_a_decoder_sees_end_of_text_between_documents_of_sentences(texts):
    (texts / "a.txt").write_text("one line\nanother\n\nnext\n")
    assert build("a.txt", "--from", "blank-lines", "--sequences", "lines") == 0
    store = open_store("out")
    read = Stream(store).read(np.array([0]), store.num_tokens + 2).tokens[0]
    assert tiny_tokenizer().decode(read) == "one line\nanother<|endoftext|>next<|endoftext|>"


def test_inputs_that_are_named_twice_are_read_once_and_reported(texts, capsys):
    (texts / "a.txt").write_text("words")
    assert build("a.txt", str(texts / "a.txt"), "a.txt") == 0
    message = "hornbook: 2 files named more than once; each file is read once\n"
    assert message in capsys.readouterr().err and open_store("out").num_documents == 1


def test_standard_input_is_no_evaluation_set(texts, capsys):
    assert build("texts", "--decontaminate", "-") == 2
    assert "standard input cannot be an evaluation set, which is read twice; save" in capsys.readouterr().err


def test_a_tokenizer_without_end_of_text(texts):
    Tokenizer.train(TEXTS, 200, kind="wordpiece").save(texts / "bert")
    assert build("texts", tokenizer="bert") == 0
    store = open_store("out")
    assert (store.end_of_text, store.end_of_text_id, store.sequences) == ("absent", None, "documents")
    assert store.num_documents == len(TEXTS) and main(["corpus", "verify", "out"]) == 0


def test_filters_are_counted_and_reported(texts, capsys):
    (texts / "texts" / "copy.jsonl").write_bytes((texts / "texts" / "rest.jsonl").read_bytes())
    words = ("texts", "--drop-duplicates", "--min-words", "4")
    assert build(*words) == 2
    captured = capsys.readouterr().err
    assert "the corpus looks wrong" in captured and "--allow unused-file" in captured
    assert build(*words, "--allow", "unused-file", "--max-dropped", "0.6", "--json") == 0
    captured = capsys.readouterr()
    dropped = json.loads(captured.out)["dropped"]
    assert "resuming after 1 finished part" in captured.err
    assert f"  dropped: {dropped['too short']:,} too short, {dropped['exact duplicates']:,} exact dup" in captured.err
    assert dropped["exact duplicates"] > 40 and sum(dropped.values()) == 110 - open_store("out").num_documents
    record = json.loads((texts / "out" / "build.json").read_text())
    assert record["read"]["dropped"] == dropped


def test_what_was_dropped_is_reported_in_the_order_of_the_filters():
    report = BuildReport(
        output=Path("out"),
        already_built=False,
        splits={"train": SplitCounts(documents=1, tokens=20, num_bytes=90)},
        sources=1,
        empty=1,
        faults=0,
        messages=[],
        skipped={"redirects": 7, "lists": 2},
        line_ends=2,
        examples={"too short": [{"source": "a\x1b.txt", "offset": 1200, "text": "one\\ntwo"}]},
        dropped={"too short": 3, "exact duplicates": 0, "overlapping an evaluation set": 2, "near duplicates": 1},
    )
    assert list(_lines(report, 0.5, "auto")) == [
        "out built in 0.5 s",
        "  train                  1 document               20 tokens         90 B of text",
        "  dropped: 1 empty document, 0 unreadable ones",
        "  skipped: 2 lists, 7 redirects",
        "  dropped: 3 too short, 2 overlapping an evaluation set, 1 near duplicate",
        "    too short: a\\x1b.txt at byte 1,200: one\\ntwo",
        "  replaced 2 line ends with a carriage return by LF; --keep-crlf keeps them",
    ]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["texts", "--sequences", "paragraphs"], "--sequences"),
        (["texts", "--sentence-language", "de"], "--sentence-language has no effect without --sequences sentences"),
        (["texts", "--sequences", "sentences", "--end-of-text", "stored"], "remove --end-of-text"),
        (["texts", "--sequences", "sentences", "--sentence-language", "Deutsch"], "is no language"),
        (["texts", "--tokenizer", "bert", "--end-of-text", "stored"], "has no end-of-text token"),
        (["texts", "--min-characters", "100000"], "60 too short); check the inputs"),
        (["texts", "void.txt"], "void.txt gave no documents"),
        (["texts", "--max-dropped", "0.1", "--min-words", "20", "--allow", "unused-file"], "more than 10%"),
        (["texts", "--decontaminate", "nothing"], "nothing"),
        (["texts", "--keep-matching", "("], "("),
        (["texts", "--encoder", "fast"], "--encoder"),
        (["texts", "--field", "body"], "no field 'body'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(texts, capsys, words, part):
    pytest.importorskip("sentencex")
    (texts / "void.txt").write_text("")
    Tokenizer.train(TEXTS, 200, kind="wordpiece").save(texts / "bert")
    assert main(["corpus", "build", "--tokenizer", "tok", "--output", "out", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert part in lines[-1] and lines[-1].startswith("hornbook: error: ")
    notes = ("run the same command to resume", "hornbook: dropped: ")
    assert lines[:-1] == [line for line in lines if any(note in line for note in notes)]
    assert not (texts / "out").exists()


@pytest.mark.parametrize("output", ["void.txt/out", "void.txt/a/out", "x" * 300])
def test_an_output_that_cannot_be_is_the_users_mistake(texts, capsys, output):
    (texts / "void.txt").write_text("")
    assert build("texts", output=output) == 2
    error = capsys.readouterr().err
    assert error.startswith("hornbook: error: cannot create the folder ") and error.count("\n") == 1


def test_a_store_whose_manifest_disagrees(texts, capsys):
    assert build("texts") == 0
    path = texts / "out" / "train" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"num_documents": 7}))
    capsys.readouterr()
    assert build("texts") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_line_of_progress():
    start = Point(seconds=10.0, tokens=500, read=1 << 20, total=5 << 20)
    now = Point(seconds=14.0, tokens=2500, read=2 << 20, total=5 << 20)
    assert progress_line("9 documents", start, now) == (
        "2.0 MiB of 5.0 MiB read, 9 documents, 500 tokens/s, 0:00:12 left"
    )
    unknown = Point(seconds=14.0, tokens=2500, read=2 << 20)
    assert progress_line("9 documents", start, unknown) == "2.0 MiB read, 9 documents, 2,500 tokens, 500 tokens/s"
    assert progress_line("9 converted", Point(seconds=0, tokens=0), Point(seconds=2, tokens=10)) == (
        "9 converted, 10 tokens, 5 tokens/s"
    )


def test_lines_of_progress_now_and_then(capsys, monkeypatch):
    times = iter((0.0, 1.0, 31.0, 32.0, 62.0))
    monkeypatch.setattr("hornbook.cli.table.time.monotonic", lambda: next(times))
    monkeypatch.setattr("rich.status.Status.start", lambda self: None)
    monkeypatch.setattr("rich.status.Status.stop", lambda self: None)
    with token_progress() as show:
        for tokens in (100, 200, 300, 400):
            show("some", tokens, tokens, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "200 B of 1000 B read, some, 3 tokens/s, 0:04:00 left",
        "400 B of 1000 B read, some, 5 tokens/s, 0:02:02 left",
    ]


def test_mostly_unreadable_is_suspicious(texts, capsys):
    lines = ['{"text": "one cat"}', '{"text": 1}', "{", '{"other": "a"}']
    (texts / "bad.jsonl").write_text("\n".join(lines))
    assert build("bad.jsonl", "--on-error", "skip") == 2
    assert "3 of 4 documents were dropped (3 unreadable), more than 50%" in capsys.readouterr().err
    assert build("bad.jsonl", "--on-error", "skip", "--allow", "dropped") == 0


def documents_of(folder):
    store = open_store(folder)
    return [store.tokenizer().decode(store.document(number)) for number in range(store.num_documents)]


def test_line_ends_become_lf_unless_they_are_kept(texts, capsys):
    (texts / "dos.txt").write_bytes("one cat\r\n\r\ntwo é\r\nmac\rcats\r\n".encode())
    (texts / "unix.txt").write_bytes("one cat\n\ntwo é\nmac\ncats\n".encode())
    for name in ("dos", "unix"):
        assert build(f"{name}.txt", output=name) == 0
    said = "replaced 5 line ends with a carriage return by LF; --keep-crlf keeps them"
    assert capsys.readouterr().out.count(said) == 1
    stores = [texts / name / "train" for name in ("dos", "unix")]
    for file in ("tokens.bin", "tokens.idx", "documents.npy"):
        assert (stores[0] / file).read_bytes() == (stores[1] / file).read_bytes()
    assert documents_of(stores[0]) == ["one cat\n\ntwo é\nmac\ncats\n<|endoftext|>"]
    assert json.loads((texts / "dos" / "build.json").read_text())["read"]["line_ends"] == 5
    assert build("dos.txt", "--keep-crlf", output="kept") == 0
    assert "line end" not in capsys.readouterr().out
    assert documents_of(texts / "kept" / "train") == ["one cat\r\n\r\ntwo é\r\nmac\rcats\r\n<|endoftext|>"]
    for name, keeps in (("dos", False), ("kept", True)):
        manifest = json.loads((texts / name / "train" / "manifest.json").read_text())
        assert manifest["options"]["reading"]["keep_crlf"] is keeps


def test_the_tails_of_long_texts_are_the_validation_split(texts, capsys):
    long = "".join(f"line {number} of the cat\n" for number in range(1000))
    (texts / "texts" / "long.txt").write_text(long)
    assert build("texts", "--validation-tail", "0.1", "--sequences", "documents") == 0
    train, validation = (open_store(texts / "out", split) for split in ("train", "validation"))
    (tail,) = documents_of(texts / "out" / "validation")
    (head,) = [text for text in documents_of(texts / "out" / "train") if text.startswith("line 0")]
    assert head.removesuffix("<|endoftext|>") + tail.removesuffix("<|endoftext|>") == long
    assert validation.num_bytes == len(tail) - len("<|endoftext|>")
    plain = sum(len(text.encode()) for text in READ_TEXTS)
    assert train.num_bytes + validation.num_bytes == plain + len(long)
    assert main(["corpus", "verify", "out"]) == 0
    (texts / "out" / "validation").rename(texts / "gone")
    assert main(["corpus", "verify", "out"]) == 2, "a corpus built with tails misses its validation split"
    capsys.readouterr()
    train_tokenizer = ["tokenizer", "train", "texts", "--vocab-size", "300", "--json", "--validation-tail"]
    assert main([*train_tokenizer, "0.1", "--output", "tok2"]) == 0
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (counts["documents"], counts["held_out"]) == (len(TEXTS) + 1, 1)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--validation-tail", "0.1", "--validation", "0.1"], "not allowed with argument"),
        (["--validation-tail", "0.5"], "must be at least 0 and at most 0.25"),
        (["--validation-tail", "0.1"], "of 60 documents, none has 10,000 characters and a line that ends near"),
    ],
)
def test_tails_that_cannot_be(texts, capsys, words, problem):
    assert build("texts", *words) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1
    assert not (texts / "out").exists() and not (texts / ".out.building").exists()


def test_three_examples_of_what_each_filter_dropped(texts, capsys):
    lines = [
        *(f"\x1b[2J{number}" for number in range(4)),
        *["a cat of this kind is seen twice " * 9] * 2,
        "one more cat here",
    ]
    (texts / "web.txt").write_text("\n".join(lines))
    words = ("web.txt", "--from", "lines", "--min-words", "3", "--drop-duplicates", "--json")
    assert build(*words) == 2
    messages = [line for line in capsys.readouterr().err.splitlines() if "dropped: " in line]
    assert messages[0] == "hornbook: dropped: too short: web.txt at byte 0: \\x1b[2J0", (
        "a refused build shows them, too"
    )
    results = []
    for threads in (1, 2):
        assert build(*words, "--allow", "dropped", "--threads", str(threads), output=f"out{threads}") == 0
        printed = capsys.readouterr()
        results.append(json.loads(printed.out.splitlines()[-1])["examples"])
    assert results[0] == results[1]
    assert results[0]["too short"] == [
        {"source": "web.txt", "offset": 6 * number, "text": f"\\x1b[2J{number}"} for number in range(3)
    ]
    (copy,) = results[0]["exact duplicates"]
    assert copy["text"] == lines[4][:80]
    assert f"    exact duplicates: web.txt at byte {copy['offset']:,}: {lines[4][:80]}\n" in printed.err
