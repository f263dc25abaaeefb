import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tiny_formats import documents, lists
from tiny_sentences import sentence_store
from tiny_text import SHARED, build_tiny, tiny_tokenizer, write_texts

from hornbook.corpora.building.builder import build_corpus
from hornbook.corpora.inspection import verify_store
from hornbook.corpora.megatron import IndexedFile, IndexedWriter, index_paths
from hornbook.corpora.store import open_store
from hornbook.errors import DataError, StorageError, UserError
from hornbook.interop.convert.stores import megatron_prefix, read_store, write_megatron, write_store
from hornbook.interop.convert.token_documents import Documents, TokenDocument, with_end_of_text
from hornbook.storage.faults import inject
from hornbook.text.tokenizer import Tokenizer

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
def test_a_real_data_set_written_again_has_the_same_bytes(tmp_path):
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
        assert np.array_equal(new.rows["num_bytes"], old.rows["num_bytes"])
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
    with pytest.raises(UserError, match="has the splits train and validation; choose one with `split`"):
        read_store(tmp_path / "built")
    with pytest.raises(UserError, match="add `tokenizer`"):
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
    with pytest.raises(DataError, match="document 0 has -2, which is not a token id"):
        lists(read_store(tmp_path / "x"))


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_full_disk_leaves_nothing(tmp_path, number):
    for write in (lambda path: write_megatron(path, documents(LISTS)),) * (number < 3) + (
        lambda path: write_store(path, documents(LISTS, **facts()), "train"),
    ):
        with inject("write", number, "enospc"), pytest.raises(StorageError):
            write(tmp_path / "x")
        assert list(tmp_path.iterdir()) == []


def test_memory_holds_some_bytes_a_document(tmp_path):
    tokens = np.full(500, 7, dtype=np.uint16)

    def peak(count):
        def read():
            return (TokenDocument(tokens, 0, 10**6 + number) for number in range(count))

        tracemalloc.start()
        write_store(tmp_path / str(count), Documents(files=("memory",), read=read, **facts()), "train")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1)  # what is loaded once
    assert peak(9000) - peak(3000) < 100 * 6000


SENTENCES = [[[5, 6], [7]], [[8]], [[9, 10, 11], [12]]]


def wordpiece():
    return Tokenizer.train(["The cat sat on the mat."] * 9, 110, kind="wordpiece")


def test_sentences_go_from_store_to_megatron_and_back(tmp_path):
    tokenizer = wordpiece()
    sentence_store(tmp_path / "old", SENTENCES, tokenizer=tokenizer)
    write_store(tmp_path / "copy", read_store(tmp_path / "old"), "train")
    write_megatron(tmp_path / "alone", read_store(tmp_path / "old"))
    foreign = read_store(tmp_path / "alone")
    assert foreign.sequences == "sentences"
    write_store(tmp_path / "new", replace(foreign, tokenizer=tokenizer, end_of_text="absent"), "train")
    for name in ("copy", "new"):
        store = open_store(tmp_path / name)
        assert (store.sequences, store.end_of_text, store.end_of_text_id) == ("sentences", "absent", None)
        assert store.indexed.sizes.tolist() == [2, 1, 1, 3, 1] and store.indexed.document_index.tolist() == [0, 2, 3, 5]
        verify_store(tmp_path / name)


def test_end_of_text_is_part_of_the_last_sentence(tmp_path):
    sentence_store(tmp_path / "old", [*SENTENCES, []], tokenizer=tiny_tokenizer(), end_of_text="inserted")
    stored = with_end_of_text(read_store(tmp_path / "old"), "stored")
    write_store(tmp_path / "stored", stored, "train")
    assert open_store(tmp_path / "stored").indexed.sizes.tolist() == [2, 2, 2, 3, 2, 1]
    verify_store(tmp_path / "stored")
    write_store(tmp_path / "back", with_end_of_text(read_store(tmp_path / "stored"), "inserted"), "train")
    assert open_store(tmp_path / "back").indexed.sizes.tolist() == [2, 1, 1, 3, 1, 0]


def test_a_store_that_says_absent_knows_its_tokenizers_end_of_text(tmp_path):
    sentence_store(tmp_path / "old", SENTENCES, tokenizer=tiny_tokenizer())
    some = read_store(tmp_path / "old")
    assert (some.end_of_text, some.end_of_text_id) == ("absent", tiny_tokenizer().end_of_text_id)
    write_store(tmp_path / "copy", some, "train")
    assert open_store(tmp_path / "copy").end_of_text == "absent"


def test_bytes_of_word_pieces_are_their_own_and_those_of_a_store_are_taken_over(tmp_path):
    tokenizer = wordpiece()
    ids = tokenizer.encode("the caté [MASK] mat")
    pieces = [name for number in ids for name, other in tokenizer.vocab.items() if other == number]
    expected = sum(len(piece.removeprefix("##").encode()) for piece in pieces if piece not in tokenizer.special)
    assert 0 < expected < len("the caté [MASK] mat".encode())
    write_store(tmp_path / "x", documents([ids], tokenizer=tokenizer, end_of_text="absent"), "train")
    assert open_store(tmp_path / "x").num_bytes == expected
    build_corpus(write_texts(tmp_path / "texts"), tokenizer, tmp_path / "built")
    write_store(tmp_path / "copy", read_store(tmp_path / "built"), "train")
    old, new = open_store(tmp_path / "built"), open_store(tmp_path / "copy")
    assert np.array_equal(old.rows["num_bytes"], new.rows["num_bytes"]) and old.num_bytes == new.num_bytes > 1000


def test_sources_and_what_their_offsets_count_are_taken_over(tmp_path):
    names = (f"hf:me/set@{'0' * 40}/train-0.parquet", "-", "/data/caf\udce9.pkl")
    some = replace(documents(LISTS, **facts()), files=names, reading={"format": "parquet", "field": "text"})
    write_store(tmp_path / "x", some, "train")
    store = open_store(tmp_path / "x")
    assert store.manifest.sources == (f"hf:me/set@{'0' * 40}/train-0.parquet", "-", "/data/caf\\udce9.pkl")
    assert store.offset_unit(2) == "row"
    write_store(tmp_path / "y", read_store(tmp_path / "x"), "train")
    assert open_store(tmp_path / "y").manifest.sources == store.manifest.sources
    assert open_store(tmp_path / "y").offset_unit(2) == "row"


def test_a_document_that_an_index_cannot_say_is_refused(tmp_path):
    huge = np.broadcast_to(np.uint16(1), (2**31,))
    content = replace(documents([[1]]), read=lambda: iter([TokenDocument(huge, 0, 0)]))
    with pytest.raises(
        UserError, match=r"2,147,483,648 tokens, more than an \.idx can represent; add `split_at_end_of_text`"
    ):
        write_megatron(tmp_path / "x", content)
    assert list(tmp_path.iterdir()) == []
