import numpy as np
import pytest

from hornbook.data.formats.stores import megatron_prefix, read_store, write_megatron, write_store
from hornbook.data.megatron import IndexedFile, IndexedWriter, index_paths
from hornbook.data.store import open_store
from hornbook.data.verify import verify_store
from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage.faults import inject
from tiny_formats import documents, lists
from tiny_text import SHARED, build_tiny, tiny_tokenizer

MEGATRON = SHARED / "megatron" / "meg-gpt2-openwebtext_text_document"
LISTS = [[5, 6, 299], [299], [7, 8, 9, 299]]


def facts():
    tokenizer = tiny_tokenizer()
    return {
        "end_of_text": "stored",
        "end_of_text_id": tokenizer.end_of_text_id,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer,
    }


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data/megatron is not there")
def test_a_real_data_set_written_anew_has_the_same_bytes(tmp_path):
    some = read_store(MEGATRON)
    assert (some.end_of_text, some.end_of_text_id, some.dtype) == ("stored", 4999, np.uint16)
    write_megatron(tmp_path / "copy.bin", some)
    for copy, original in zip(index_paths(tmp_path / "copy"), index_paths(MEGATRON), strict=True):
        assert copy.read_bytes() == original.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["copy.bin", "copy.idx"]


def test_a_built_corpus_out_and_in_again_is_the_same_store(tmp_path):
    build_tiny(tmp_path / "built")
    old = open_store(tmp_path / "built", "validation")
    write_megatron(tmp_path / "alone", read_store(tmp_path / "built", "validation"))
    foreign = read_store(tmp_path / "alone")
    write_store(tmp_path / "new", documents(lists(foreign), **facts()), "validation")
    write_store(tmp_path / "copy", read_store(tmp_path / "built", "validation"), "validation")
    for folder in ("new", "copy"):
        new = open_store(tmp_path / folder)
        assert verify_store(tmp_path / folder).documents == old.num_documents
        assert new.fingerprint == old.fingerprint and new.num_bytes == old.num_bytes
        assert np.array_equal(new.document_bytes, old.document_bytes)
        assert new.manifest.split == "validation" and new.end_of_text == "stored"
    assert [new.source(number) for number in range(3)] == [old.source(number) for number in range(3)]


def test_places(tmp_path):
    write_store(tmp_path / "x", documents(LISTS, **facts()), "train")
    assert [open_store(tmp_path / "x").source(number)[1] for number in range(3)] == [0, 1, 2]
    assert [document.offset for document in read_store(tmp_path / "x")] == [0, 1, 2]
    write_megatron(tmp_path / "y", documents(LISTS))
    assert [document.offset for document in read_store(tmp_path / "y")] == [0, 12, 16]


def test_a_document_of_several_sequences_and_one_of_none(tmp_path):
    with IndexedWriter(tmp_path / "x", "uint16") as writer:
        for sequences in ([[1, 2], [3]], [], [[4], []]):
            for sequence in sequences:
                writer.add_sequence(sequence)
            writer.end_document()
    assert lists(read_store(tmp_path / "x")) == [[1, 2, 3], [], [4]]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ({}, "int32"),
        ({"vocab_size": 50_257}, "uint16"),
        ({"vocab_size": 70_000}, "int32"),
        ({"dtype": np.dtype("<u2")}, "uint16"),
        ({"dtype": np.dtype("<i8")}, "int64"),
        ({"dtype": np.dtype(">i8")}, "int32"),
        ({"dtype": np.dtype("u1"), "end_of_text_id": 300}, "int32"),
    ],
)
def test_the_dtype(tmp_path, given, dtype):
    write_megatron(tmp_path / "x", documents([[1, 2]], **given))
    assert IndexedFile.open(tmp_path / "x").dtype == dtype


def test_refusals(tmp_path):
    build_tiny(tmp_path / "built")
    with pytest.raises(UserError, match="has the splits train and validation; choose one with --split"):
        read_store(tmp_path / "built")
    with pytest.raises(UserError, match="name it with --tokenizer"):
        write_store(tmp_path / "x", documents(LISTS, end_of_text="stored"), "train")
    (tmp_path / "x.bin").touch()
    with pytest.raises(UserError, match=r"x\.bin exists already"):
        write_megatron(tmp_path / "x", documents(LISTS))
    with pytest.raises(UserError, match="built exists already"):
        write_store(tmp_path / "built", documents(LISTS, **facts()), "train")
    assert megatron_prefix(tmp_path / "a.b.idx") == tmp_path / "a.b"
    with pytest.raises(DataError, match="no such token store"):
        read_store(tmp_path / "y")


def test_negative_ids_of_others(tmp_path):
    with IndexedWriter(tmp_path / "x", "int32") as writer:
        writer.add_document([1, -2])
    with pytest.raises(DataError, match="document 0 holds -2, which is no token id"):
        lists(read_store(tmp_path / "x"))


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_full_disk_leaves_nothing(tmp_path, number):
    for write in (lambda path: write_megatron(path, documents(LISTS)),) * (number < 3) + (
        lambda path: write_store(path, documents(LISTS, **facts()), "train"),
    ):
        with inject("write", number, "enospc"), pytest.raises(StorageError):
            write(tmp_path / "x")
        assert list(tmp_path.iterdir()) == []
