import json
import shutil

import numpy as np
import pytest
from tiny_sentences import sentence_starts, sentence_store
from tiny_text import one_line

from hornbook.corpora.folders import MANIFEST
from hornbook.corpora.store import open_store
from hornbook.errors import DataError
from hornbook.samples.windows import Stream

DOCUMENTS = [[[10, 11], [12, 13, 14]], [[15]], [], [[16, 17], [18], [19, 20]]]


@pytest.fixture
def folder(tmp_path):
    return sentence_store(tmp_path / "store", DOCUMENTS)


def test_a_sentence_store_has_sequences_inside_documents(folder):
    store = open_store(folder)
    assert (store.sequences, store.num_documents, store.num_sequences, store.num_tokens) == ("sentences", 4, 6, 11)
    assert store.indexed.sizes.tolist() == [2, 3, 1, 2, 1, 2]
    assert store.indexed.document_index.tolist() == [0, 2, 3, 3, 6]
    assert [sentence_starts(store, number) for number in range(4)] == [[0, 2, 5], [0, 1], [0], [0, 2, 3, 5]]


def test_a_decoder_reads_its_documents_joined(folder):
    store = open_store(folder)
    assert store.document(0).tolist() == [10, 11, 12, 13, 14]
    assert store.read(3, 1, 3).tolist() == [17, 18, 19]
    window = Stream(store).read(np.array([0]), 11)
    assert window.tokens[0].tolist() == list(range(10, 21))
    assert window.documents[0].tolist() == [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]


def test_the_files_of_others_are_sentence_stores_by_their_index(folder, tmp_path):
    for suffix in (".bin", ".idx"):
        shutil.copy(folder / f"tokens{suffix}", tmp_path / f"megatron_text_sentence{suffix}")
    assert open_store(tmp_path / "megatron_text_sentence").sequences == "sentences"


def test_a_manifest_that_denies_the_sentences_is_refused(folder):
    values = json.loads((folder / MANIFEST).read_text()) | {"checksum": None, "sequences": "documents"}
    (folder / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(DataError, match="6 sequences for 4 documents") as caught:
        open_store(folder)
    assert one_line(caught.value)


def test_sequence_lengths_sum_to_documents(folder):
    store = open_store(folder)
    ends = [sentence_starts(store, number)[-1] for number in range(store.num_documents)]
    assert np.array_equal(ends, store.document_lengths)
