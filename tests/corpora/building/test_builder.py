import io
import json
import os
import random
import sys
from pathlib import Path

import pytest
from tiny_text import READ_TEXTS as TEXTS
from tiny_text import build_tiny, one_line, tiny_tokenizer, write_texts

from hornbook.corpora.building.builder import BuildOptions, build_corpus
from hornbook.corpora.building.token_pipeline import falls_to_validation
from hornbook.corpora.inspection import verify_store
from hornbook.corpora.store import open_store
from hornbook.errors import DataError, UserError
from hornbook.storage import lock_folder
from hornbook.text.documents import ReadOptions
from hornbook.text.quality.policy import Tolerance
from hornbook.text.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """The faults here are those of a process, which the kernel survives; waiting for the disk is most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts_of(store):
    tokenizer = store.tokenizer()
    return [tokenizer.decode(store.document(number)[:-1]) for number in range(store.num_documents)]


def only(folder, *names):
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_a_corpus_holds_the_documents(tmp_path):
    report = build_tiny(tmp_path / "corpus")
    assert (report.sources, report.empty, report.faults, report.already_built) == (11, 0, 0, False)
    for split in ("train", "validation"):
        store = open_store(tmp_path / "corpus", split)
        expected = [text for text in TEXTS if falls_to_validation(text, 0.25) == (split == "validation")]
        assert texts_of(store) == expected
        assert store.num_bytes == sum(len(text.encode()) for text in expected) == report.splits[split].num_bytes
        assert (store.num_documents, store.num_tokens) == (report.splits[split].documents, report.splits[split].tokens)
        verify_store(tmp_path / "corpus", split)
    assert only(tmp_path, "corpus", "texts")
    assert only(tmp_path / "corpus", "build.json", "train", "validation")


def test_without_validation_there_is_one_split(tmp_path):
    report = build_tiny(tmp_path / "corpus", validation=0.0)
    assert set(report.splits) == {"train"} and only(tmp_path / "corpus", "build.json", "train")
    with pytest.raises(DataError, match="no validation split"):
        open_store(tmp_path / "corpus", "validation")


def test_documents_know_where_they_are_from(tmp_path):
    build_tiny(tmp_path / "corpus", validation=0.0)
    store = open_store(tmp_path / "corpus")
    for number, text in enumerate(texts_of(store)):
        path, offset = store.source(number)
        with Path(path).open("rb") as file:
            file.seek(offset)
            found = json.loads(file.readline())["text"] if path.endswith("jsonl") else file.read().decode()
        assert found.replace("\r\n", "\n") == text


def test_inserted_end_of_text(tmp_path):
    build_tiny(tmp_path / "corpus", end_of_text="inserted")
    store = open_store(tmp_path / "corpus")
    assert (store.end_of_text, store.end_of_text_id) == ("inserted", 299)
    assert 299 not in store.indexed.tokens
    verify_store(tmp_path / "corpus")


@pytest.mark.slow
def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    pairs = tiny_tokenizer()
    vocab = dict(pairs.vocab) | {f"unused{number}": number for number in range(300, 70_000)}
    value = json.loads(pairs.to_json())
    value["model"]["vocab"] = vocab
    tokenizer = Tokenizer.from_json(json.dumps(value))
    (tmp_path / "a.txt").write_text("text")
    build_corpus([tmp_path / "a.txt"], tokenizer, tmp_path / "corpus")
    store = open_store(tmp_path / "corpus")
    assert store.indexed.dtype.name == store.manifest.dtype == "int32"
    assert texts_of(store) == ["text"]


def test_the_same_build_again_is_done_already(tmp_path):
    first = build_tiny(tmp_path / "corpus")
    before = contents(tmp_path / "corpus")
    again = build_tiny(tmp_path / "corpus")
    assert again.already_built and again.splits == first.splits and again.sources == 11
    assert contents(tmp_path / "corpus") == before and only(tmp_path, "corpus", "texts")


def test_the_same_build_elsewhere_has_the_same_bytes(tmp_path):
    build_tiny(tmp_path / "one")
    build_tiny(tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_another_build_to_the_same_place_is_refused(tmp_path):
    build_tiny(tmp_path / "corpus")
    before = contents(tmp_path / "corpus")
    with pytest.raises(UserError) as caught:
        build_tiny(tmp_path / "corpus", end_of_text="inserted")
    assert one_line(caught.value, "exists already, built with other options", "`output`")
    (tmp_path / "texts" / "0.txt").write_text("changed")
    with pytest.raises(UserError, match="with other inputs;"):
        build_tiny(tmp_path / "corpus")
    with pytest.raises(UserError, match="with other inputs and tokenizer and options"):
        build_corpus([tmp_path / "texts"], Tokenizer.train(TEXTS, 290), tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == before and only(tmp_path, "corpus", "texts")


def test_a_place_that_is_taken(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not a finished corpus"):
        build_tiny(tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == {"mine.txt": b"mine"}
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert not build_tiny(tmp_path / "link").already_built
    with pytest.raises(UserError, match="cannot be a new folder"):
        build_corpus([tmp_path / "texts"], tiny_tokenizer(), Path(tmp_path.root))


def test_a_text_file_that_cannot_be_read_is_skipped_and_counted(tmp_path):
    write_texts(tmp_path / "texts")
    (tmp_path / "texts" / "bad.txt").write_bytes(b"caf\xe9")
    options = BuildOptions(reading=ReadOptions(on_error="skip"))
    report = build_corpus([tmp_path / "texts"], tiny_tokenizer(), tmp_path / "corpus", options)
    assert report.splits["train"].documents == len(TEXTS)
    assert report.faults == 1 and "bad.txt" in report.messages[0]
    (tmp_path / "texts" / "empty.txt").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.txt gave no documents"):
        build_corpus([tmp_path / "texts"], tiny_tokenizer(), tmp_path / "other", options)


@pytest.mark.parametrize("record", [b"{", b"[]", b'{"format": "hornbook corpus", "format_version": 1}'])
def test_a_damaged_record_of_a_build(tmp_path, record):
    build_tiny(tmp_path / "corpus")
    (tmp_path / "corpus" / "build.json").write_bytes(record)
    with pytest.raises(DataError) as caught:
        build_tiny(tmp_path / "corpus")
    assert one_line(caught.value, "build.json")


def test_standard_input(tmp_path, monkeypatch):
    class StandardInput:
        buffer = io.BytesIO(b"some text")

    monkeypatch.setattr(sys, "stdin", StandardInput)
    build_corpus(["-"], tiny_tokenizer(), tmp_path / "corpus")
    store = open_store(tmp_path / "corpus")
    assert texts_of(store) == ["some text"] and store.source(0) == ("-", 0)
    with pytest.raises(UserError, match="with other inputs"):
        build_corpus(["-"], tiny_tokenizer(), tmp_path / "corpus")


def test_the_split_stays_when_documents_come_and_move(tmp_path):
    for name, texts in (("some", TEXTS[:40]), ("more", [*random.Random(1).sample(TEXTS, len(TEXTS)), TEXTS[3]])):
        (tmp_path / name).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / name / f"{number:03}.txt").write_bytes(text.encode())
        build_corpus([tmp_path / name], tiny_tokenizer(), tmp_path / f"corpus-{name}", BuildOptions(validation=0.3))
    some, more = (set(texts_of(open_store(tmp_path / f"corpus-{name}", "validation"))) for name in ("some", "more"))
    train = set(texts_of(open_store(tmp_path / "corpus-more", "train")))
    assert some == more & set(TEXTS[:40]) and not train & more and train | more == set(TEXTS)


@pytest.mark.parametrize(
    ("data", "options", "error", "part"),
    [
        (b"", {}, DataError, "the corpus would have no documents (1 file, 1 empty document, 0 unreadable)"),
        (b"\xff", {}, DataError, "not UTF-8"),
        (b"\xff", {"reading": ReadOptions(on_error="skip")}, DataError, "1 unreadable, the first: "),
        (
            b"text",
            {"validation": 1e-9},
            DataError,
            "would be empty: of 1 document, `validation=1e-09` selects none",
        ),
        (b"text", {"validation": 1 - 1e-9}, DataError, "the train split would be empty"),
        (b"text", {"validation": 1.0}, UserError, "validation is 1.0"),
        (b"text", {"validation": -0.1}, UserError, "validation is -0.1"),
        (b"text", {"reading": ReadOptions(suffixes=(".py",))}, UserError, "no file to read (suffix .py)"),
    ],
)
def test_a_build_that_would_come_to_nothing_fails_and_leaves_nothing(tmp_path, data, options, error, part):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(data)
    with pytest.raises(error) as caught:
        build_tiny(tmp_path / "corpus", **options)
    assert one_line(caught.value, part)
    assert only(tmp_path, "texts")


def test_a_split_of_few_long_texts_far_from_the_requested_share_suggests_their_ends(tmp_path):
    inputs = tmp_path / "books"
    inputs.mkdir()
    for number, size in enumerate((90_000, 12_000)):
        (inputs / f"{number}.txt").write_text(f"book {number}\n" + "one word after the other\n" * (size // 25))

    def notices(output, **options):
        told = []
        build_corpus([inputs], tiny_tokenizer(), tmp_path / output, BuildOptions(**options), on_notice=told.append)
        return told

    (note,) = notices("whole", validation=0.5)  # the hash selects the first
    assert note.startswith("1 of 2 documents are held out whole, 88") and "`validation_tail=0.25`" in note
    assert notices("tails", validation_tail=0.1) == []


@pytest.mark.parametrize(("share", "split"), [(1e-9, "validation"), (1 - 1e-9, "train")])
def test_an_empty_split_says_how_to_come_to_more_documents(tmp_path, share, split):
    (tmp_path / "book.txt").write_text("one\n\ntwo\n\nthree")
    (tmp_path / "lines.jsonl").write_text('{"text": "one"}')
    options = BuildOptions(validation=share)
    with pytest.raises(DataError) as caught:
        build_corpus([tmp_path / "book.txt"], tiny_tokenizer(), tmp_path / "corpus", options)
    assert one_line(
        caught.value, f"the {split} split would be empty", "a text file is one document", "`format='lines'`"
    )
    with pytest.raises(DataError) as caught:
        build_corpus([tmp_path / "lines.jsonl"], tiny_tokenizer(), tmp_path / "corpus", options)
    assert one_line(caught.value, f"the {split} split would be empty", "add documents, or choose another share")
    by_paragraph = BuildOptions(validation=0.5, reading=ReadOptions(format="blank-lines"))
    assert len(build_corpus([tmp_path / "book.txt"], tiny_tokenizer(), tmp_path / "corpus", by_paragraph).splits) == 2


def test_an_input_that_changes_meanwhile(tmp_path):
    first = write_texts(tmp_path / "texts")[0]

    def change(progress):
        first.write_bytes(first.read_bytes() + b"more")

    with pytest.raises(DataError, match="an input changed during the build"):
        build_corpus([tmp_path / "texts"], tiny_tokenizer(), tmp_path / "corpus", on_progress=change)
    assert only(tmp_path, "texts")


def test_a_document_that_cannot_be_cut_is_unreadable(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "x" * 5_000_000)))
    with pytest.raises(DataError) as caught:
        build_tiny(tmp_path / "corpus", inputs=[tmp_path / "a.jsonl"], validation=0.0)
    assert one_line(
        caught.value, f"{tmp_path / 'a.jsonl'}, the document at byte 16: has 5,000,000 bytes without a blank"
    )
    skip = {"reading": ReadOptions(on_error="skip"), "tolerance": Tolerance(max_dropped=1.0)}
    report = build_tiny(tmp_path / "corpus", inputs=[tmp_path / "a.jsonl"], validation=0.0, **skip)
    assert (report.faults, report.splits["train"].documents) == (1, 1)


def test_skipped_documents_are_counted(tmp_path):
    build_tiny(tmp_path / "clean")
    (tmp_path / "texts" / "bad.txt").write_bytes(b"\xff")
    (tmp_path / "texts" / "empty.txt").write_bytes(b"")
    tolerance = Tolerance(allow=("empty-file",))
    report = build_tiny(tmp_path / "corpus", reading=ReadOptions(on_error="skip"), tolerance=tolerance)
    assert (report.empty, report.faults, len(report.messages)) == (1, 1, 1)
    assert open_store(tmp_path / "corpus").num_documents == open_store(tmp_path / "clean").num_documents


def test_a_name_that_is_not_utf8(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    build_tiny(tmp_path / "corpus", validation=0.0)
    assert open_store(tmp_path / "corpus").source(0)[0].endswith("caf\\udce9.txt")


def test_a_second_build_to_the_same_place_waits_its_turn(tmp_path):
    with lock_folder(tmp_path / ".corpus.building"), pytest.raises(UserError) as caught:
        build_tiny(tmp_path / "corpus")
    assert one_line(caught.value, "in use by another process")
