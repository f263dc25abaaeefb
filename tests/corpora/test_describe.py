import numpy as np
import pytest
from tiny_text import build_tiny

from hornbook.corpora.inspection import describe_lengths, samples, tokens_per_byte
from hornbook.corpora.megatron import IndexedWriter
from hornbook.corpora.store import open_store


def store_of(path, lengths):
    with IndexedWriter(path, "uint16") as writer:
        for number, length in enumerate(lengths):
            writer.add_document(np.full(length, number))
    return open_store(path)


def test_lengths(tmp_path):
    found = describe_lengths(store_of(tmp_path / "x", [3, 4, 5, 8, 100]))
    assert (found["shortest"], found["mean"], found["median"], found["longest"]) == (3, 24.0, 5.0, 100)
    bins = [(row["start"], row["end"], row["documents"]) for row in found["bins"]]
    assert bins == [(2, 4, 1), (4, 8, 2), (8, 16, 1), (16, 32, 0), (32, 64, 0), (64, 128, 1)]


def test_every_document_is_in_the_bin_of_its_length(tmp_path):
    lengths = list(range(1, 140))
    for row in describe_lengths(store_of(tmp_path / "x", lengths))["bins"]:
        assert row["documents"] == sum(row["start"] <= length < row["end"] for length in lengths)


def test_samples(tmp_path):
    build_tiny(tmp_path / "corpus", validation=0.0)
    store = open_store(tmp_path / "corpus")
    found = samples(store, 3)
    assert [sample["document"] for sample in found] == [0, 29, 59]
    assert found[0]["text"].startswith("story 0: ") and found[0]["source"] == store.source(0)
    assert samples(store, 0) == []
    assert len(samples(store, 1000)) == store.num_documents


def test_samples_without_a_tokenizer_are_ids(tmp_path):
    [first, *_] = samples(store_of(tmp_path / "x", [3, 100]), 2)
    assert (first["text"], first["source"]) == ("0 0 0", None)


@pytest.mark.parametrize("end_of_text", ["stored", "inserted"])
def test_tokens_per_byte_count_text_alone(tmp_path, end_of_text):
    build_tiny(tmp_path / "corpus", end_of_text=end_of_text)
    store = open_store(tmp_path / "corpus")
    texts = [
        store.tokenizer().decode(store.document(n)).removesuffix("<|endoftext|>") for n in range(store.num_documents)
    ]
    tokens = sum(len(store.tokenizer().encode(text)) for text in texts)
    assert tokens_per_byte(store) == tokens / sum(len(text.encode()) for text in texts)
    assert tokens_per_byte(store_of(tmp_path / "x", [3])) is None
