from pathlib import Path

import numpy as np
import pytest
from damage import mutated, survive
from tiny_formats import BERT_TFRECORD, documents, lists
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.interop.convert.token_files import read_gpt2_tfrecords, write_gpt2_tfrecords
from hornbook.interop.formats.protobuf import encode_example
from hornbook.interop.formats.tfrecord import frame

LISTS = [[5, 300, 50_256], [], [2**31 - 1] * 5, list(range(300))]


def read(path):
    return lists(read_gpt2_tfrecords(path))


@pytest.mark.parametrize("per_file", [None, 1, 3])
def test_round_trip(tmp_path, per_file):
    write_gpt2_tfrecords(tmp_path / "x", documents(LISTS), per_file)
    assert read(tmp_path / "x") == LISTS
    some = read_gpt2_tfrecords(tmp_path / "x")
    for document in some:
        start = Path(some.files[document.file]).read_bytes()[document.offset :][:8]
        assert 0 < int.from_bytes(start, "little") < 2000


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"input_ids": np.array([1]), "mask": np.array([1])}, "features 'input_ids, mask'; expected only input_ids"),
        ({}, "features ''"),
        ({"input_ids": np.ones(3, dtype=np.float32)}, "has no integers"),
        ({"input_ids": [b"abc"]}, "has no integers"),
        ({"input_ids": np.array([-1])}, "has -1, which is not a token id"),
        ({"input_ids": np.array([2**31])}, "not a token id"),
    ],
)
def test_other_records(tmp_path, features, message):
    (tmp_path / "x").write_bytes(frame(encode_example({"input_ids": np.array([1])})) + frame(encode_example(features)))
    with pytest.raises(DataError) as caught:
        read(tmp_path / "x")
    assert one_line(caught.value, "the record at byte 38", message)


@pytest.mark.skipif(not BERT_TFRECORD.exists(), reason="../shared/data/tfrecord is not there")
def test_bert_records_are_no_documents():
    with pytest.raises(DataError, match="expected only input_ids"):
        read(BERT_TFRECORD)


def test_a_document_too_long_for_a_record(tmp_path):
    long = documents([np.full(6_000_000, 50_000, dtype=np.int32)])
    with pytest.raises(UserError, match="document 0 has 6000000 tokens, too many for a record; add `sequence_length`"):
        write_gpt2_tfrecords(tmp_path / "x", long)


def test_mutated_records_with_good_checksums(tmp_path):
    original = encode_example({"input_ids": np.arange(100) * 7})
    words = (b"\x0a", b"\x12", b"\x1a", b"input_ids", b"\xff" * 10)
    records = (frame(data) for data in mutated(original, 1200, seed=4, words=words))
    refused, accepted = survive(read, tmp_path / "x", records)
    assert refused > 500 and accepted > 50
