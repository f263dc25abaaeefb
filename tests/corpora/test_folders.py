import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_text import build_tiny, one_line

from hornbook.corpora.folders import DOCUMENT_ROW, MANIFEST, OF_CORPORA, STORE_FILES, Manifest, read_rows
from hornbook.errors import DataError
from hornbook.formats.npy import npy_bytes
from hornbook.storage import Written

FACTS = Manifest(
    num_documents=2,
    num_tokens=7,
    num_bytes=20,
    dtype="uint16",
    end_of_text="stored",
    end_of_text_id=299,
    tokenizer="abc",
    vocab_size=300,
    split="train",
    options={"validation": 0.5},
    sources=("/texts/ä.txt", "-"),
    files={name: Written(size=3, sha256="def") for name in STORE_FILES},
)


def test_round_trip(tmp_path):
    (tmp_path / MANIFEST).write_bytes(FACTS.to_bytes())
    assert Manifest.read(tmp_path) == FACTS


def test_the_folder_of_a_corpus_is_known_without_its_record_or_manifest(tmp_path):
    def is_corpus(folder):
        return any((folder / name).exists() for name in OF_CORPORA)

    build_tiny(tmp_path / "corpus")
    assert not is_corpus(tmp_path)
    for name in ("build.json", "train/manifest.json"):
        (tmp_path / "corpus" / name).unlink()
        assert is_corpus(tmp_path / "corpus") and is_corpus(tmp_path / "corpus" / "train")


def test_a_manifest_from_before_there_were_sentences_has_documents(tmp_path):
    (tmp_path / MANIFEST).write_text(json.dumps(without("sequences")))
    assert Manifest.read(tmp_path) == FACTS


def test_a_store_for_bert_has_sentences_and_no_end_of_text(tmp_path):
    facts = replace(FACTS, end_of_text="absent", end_of_text_id=None, sequences="sentences")
    (tmp_path / MANIFEST).write_bytes(facts.to_bytes())
    assert Manifest.read(tmp_path) == facts


def without(name):
    values = json.loads(FACTS.to_bytes())
    values["checksum"] = None
    del values[name]
    return values


def changed(**values):
    return json.loads(FACTS.to_bytes()) | values


FILES = json.loads(FACTS.to_bytes())["files"]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([], "version 1"),
        (changed(format="another"), "version 1"),
        (changed(format_version=2), "version 1"),
        *(
            (without(name), name)
            for name in json.loads(FACTS.to_bytes())
            if not name.startswith(("format", "sequ", "check", "chunk"))
        ),
        (changed(num_tokens=-1), "num_tokens"),
        (changed(num_tokens=True), "num_tokens"),
        (changed(num_tokens=1.5), "num_tokens"),
        (changed(dtype=None), "dtype"),
        (changed(end_of_text="absent"), "null if absent"),
        (changed(end_of_text="missing"), "stored, inserted or absent"),
        (changed(end_of_text_id=None), "end_of_text_id"),
        (changed(sequences="words"), "documents or sentences"),
        (changed(sources=["a", 1]), "a source"),
        (changed(sources={}), "sources"),
        (changed(chunk_hashes={"size": 1}), "tokens.sha256"),
        (changed(files={}), "tokens.bin"),
        (changed(files=FILES | {"tokens.bin": {"size": "1", "sha256": ""}}), "tokens.bin"),
        (changed(files=FILES | {"tokens.idx": 1}), "tokens.idx"),
        (changed(files=FILES | {"../../etc/passwd": FILES["tokens.bin"]}), "files that do not belong to a store"),
    ],
)
def test_a_malformed_manifest(tmp_path, value, part):
    (tmp_path / MANIFEST).write_text(json.dumps(value))
    with pytest.raises(DataError) as caught:
        Manifest.read(tmp_path)
    assert one_line(caught.value, str(tmp_path / MANIFEST), part)


def test_a_file_that_is_no_manifest(tmp_path):
    with pytest.raises(DataError, match="missing"):
        Manifest.read(tmp_path)
    (tmp_path / MANIFEST).write_bytes(FACTS.to_bytes()[:-20])
    with pytest.raises(DataError, match="not valid JSON"):
        Manifest.read(tmp_path)


def test_the_same_facts_give_the_same_bytes():
    shuffled = replace(FACTS, files=dict(reversed(FACTS.files.items())))
    assert shuffled.to_bytes() == FACTS.to_bytes()


def rows(count):
    return np.array([(number, number * 7, 2**40 + number) for number in range(count)], dtype=DOCUMENT_ROW)


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_rows_round_trip_and_numpy_reads_it_too(tmp_path, count):
    path = tmp_path / "documents.npy"
    path.write_bytes(npy_bytes(rows(count)))
    assert np.array_equal(read_rows(path, count), rows(count))
    assert np.array_equal(np.load(path, allow_pickle=False), rows(count))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        npy_bytes(rows(4)),
        npy_bytes(rows(3))[:-1],
        npy_bytes(rows(3)) + b"\0",
        npy_bytes(rows(3)["offset"]),
        npy_bytes(rows(3).reshape(3, 1)),
        npy_bytes(rows(3)).replace(b"\x01\x00", b"\x09\x00", 1),
        npy_bytes(rows(3)).replace(b"(3,)", b"(((("),
        npy_bytes(rows(3)).replace(b"'<i4'", b"'|O8'"),
    ],
)
def test_any_other_array_is_refused(tmp_path, data):
    path = tmp_path / "documents.npy"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_rows(path, 3)
    assert one_line(caught.value, str(path), "3 documents")
