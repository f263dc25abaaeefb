import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_text import SHARED, one_line

from hornbook.corpora import megatron
from hornbook.corpora.megatron import (
    DTYPES,
    HEADER,
    IndexedFile,
    IndexedWriter,
    JoinedPart,
    index_paths,
    join_indexed,
    smallest_dtype,
)
from hornbook.errors import DataError, StorageError
from hornbook.storage.faults import inject

MEGATRON = SHARED / "megatron" / "meg-gpt2-openwebtext_text_document"
needs_megatron = pytest.mark.skipif(not SHARED.exists(), reason="../shared/data/megatron is not there")


def write(prefix, documents, dtype="uint16"):
    """Documents are lists of sequences."""
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            for sequence in document:
                writer.add_sequence(sequence)
            writer.end_document()
    return prefix


def pack(dtype_code, sizes, pointers, document_index, magic=b"MMIDIDX\0\0", version=1):
    """An index by hand, with other means than the writer's."""
    n, d = len(sizes), len(document_index)
    return magic + struct.pack(f"<QBQQ{n}i{n}q{d}q", version, dtype_code, n, d, *sizes, *pointers, *document_index)


def test_the_layout_byte_for_byte(tmp_path):
    bin_path, idx_path = index_paths(write(tmp_path / "x.v1", [[[5, 6, 7]], [[8, 9], [10]]]))
    assert (bin_path.name, idx_path.name) == ("x.v1.bin", "x.v1.idx")
    assert bin_path.read_bytes() == struct.pack("<6H", 5, 6, 7, 8, 9, 10)
    assert idx_path.read_bytes() == pack(8, [3, 2, 1], [0, 6, 10], [0, 1, 3])
    assert HEADER.itemsize == 34


@needs_megatron
def test_a_real_store_reads_as_it_should():
    indexed = IndexedFile.open(MEGATRON)
    assert (indexed.num_documents, indexed.num_sequences, indexed.num_tokens) == (1000, 1000, 1_361_845)
    assert (indexed.dtype, indexed.tokens.max(), indexed.is_contiguous) == (np.uint16, 4999, True)


@needs_megatron
def test_a_real_store_written_again_has_the_same_bytes(tmp_path):
    indexed = IndexedFile.open(MEGATRON)
    with IndexedWriter(tmp_path / "copy", np.uint16) as writer:
        for number in range(indexed.num_documents):
            writer.add_document(indexed.sequence(number))
    for copy, original in zip(index_paths(tmp_path / "copy"), indexed.paths, strict=True):
        assert copy.read_bytes() == original.read_bytes()


def test_an_index_with_modes(tmp_path):
    """Megatron-LM's multimodal data sets: an int8 a sequence follows the document index; 0 is text."""
    (tmp_path / "x.bin").write_bytes(struct.pack("<6H", 5, 6, 7, 8, 9, 10))
    index = pack(8, [3, 2, 1], [0, 6, 10], [0, 1, 3])
    (tmp_path / "x.idx").write_bytes(index + bytes(3))
    indexed = IndexedFile.open(tmp_path / "x")
    assert [indexed.sequence(number).tolist() for number in range(3)] == [[5, 6, 7], [8, 9], [10]]
    (tmp_path / "x.idx").write_bytes(index + b"\0\1\0")
    with pytest.raises(DataError) as caught:
        IndexedFile.open(tmp_path / "x")
    assert one_line(caught.value, "x.idx", "multimodal data set of Megatron-LM, in which 1 of 3 sequences are not text")
    (tmp_path / "x.idx").write_bytes(index + bytes(2))
    with pytest.raises(DataError, match="it is damaged"):
        IndexedFile.open(tmp_path / "x")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(tmp_path_factory, data):
    dtype = data.draw(st.sampled_from(list(DTYPES.values())))
    sequences = arrays.arrays(dtype, st.integers(0, 5))
    documents = data.draw(st.lists(st.lists(sequences, max_size=3), max_size=5))
    indexed = IndexedFile.open(write(tmp_path_factory.mktemp("round") / "x", documents, dtype))
    assert (indexed.dtype, indexed.num_documents) == (dtype, len(documents))
    for number, document in enumerate(documents):
        whole = np.concatenate([np.empty(0, dtype), *document])
        assert np.diff(indexed.document_starts)[number] == len(whole)
        start = data.draw(st.integers(0, len(whole)))
        count = data.draw(st.integers(0, len(whole) - start))
        assert np.array_equal(indexed.read(number, start, count), whole[start : start + count])


def test_sequences_in_another_order_than_their_bytes(tmp_path):
    bin_path, idx_path = index_paths(tmp_path / "x")
    bin_path.write_bytes(struct.pack("<6H", 8, 9, 5, 6, 7, 10))
    idx_path.write_bytes(pack(8, [3, 0, 2, 1], [4, 0, 0, 10], [0, 2, 4]))
    indexed = IndexedFile.open(tmp_path / "x")
    assert not indexed.is_contiguous
    assert [indexed.read(0, 0, 3).tolist(), indexed.read(1, 1, 2).tolist()] == [[5, 6, 7], [9, 10]]
    assert indexed.document_starts.tolist() == [0, 3, 6]


def test_what_is_not_there_cannot_be_read(tmp_path):
    indexed = IndexedFile.open(write(tmp_path / "x", [[[5, 6, 7]], [[8]]]))
    for place in [(0, -1, 1), (0, 0, 4), (0, 3, 1), (0, 2, -1), (2, 0, 0), (-1, 0, 1), (1, 1, 1)]:
        with pytest.raises(IndexError):
            indexed.read(*place)
    for number in (-1, 2):
        with pytest.raises(IndexError):
            indexed.sequence(number)
    with pytest.raises(ValueError, match="read-only"):
        indexed.read(0, 0, 1)[:] = 0


def test_an_empty_data_set(tmp_path):
    indexed = IndexedFile.open(write(tmp_path / "x", []))
    assert (indexed.num_documents, indexed.num_tokens) == (0, 0)


def test_large_documents_are_written_as_they_come(tmp_path):
    documents = [np.arange(700_000) % 60_000, np.arange(10)]
    indexed = IndexedFile.open(write(tmp_path / "x", [[document] for document in documents]))
    assert all(np.array_equal(indexed.sequence(number), document) for number, document in enumerate(documents))


def test_a_token_that_does_not_fit_is_a_programming_error(tmp_path):
    with pytest.raises(AssertionError, match="does not fit uint16"), IndexedWriter(tmp_path / "x", "uint16") as writer:
        writer.add_document([1, 70_000])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_full_disk_leaves_neither_file(tmp_path, number):
    with inject("write", number, "enospc") as struck, pytest.raises(StorageError):
        write(tmp_path / "x", [[[1, 2, 3]]])
    assert struck() and list(tmp_path.iterdir()) == []


def test_a_document_that_was_not_ended_leaves_neither_file(tmp_path):
    with pytest.raises(AssertionError, match="not ended"), IndexedWriter(tmp_path / "x", "uint16") as writer:
        writer.add_sequence([1])
    assert list(tmp_path.iterdir()) == []


def test_smallest_dtype():
    assert [smallest_dtype(size).name for size in (300, 50_257, 65_536, 65_537)] == ["uint16"] * 3 + ["int32"]


def test_joining(tmp_path):
    documents = [[[[1, 2]], [[3], [4, 5]]], [], [[[6]], []], [[[7, 8, 9]]]]
    parts = [write(tmp_path / f"part{n}", part) for n, part in enumerate(documents)]
    written = join_indexed(lambda: map(JoinedPart, parts), np.dtype("u2"), tmp_path / "joined")
    write(tmp_path / "whole", [document for part in documents for document in part])
    for joined, whole, file in zip(
        index_paths(tmp_path / "joined"), index_paths(tmp_path / "whole"), written, strict=True
    ):
        assert joined.read_bytes() == whole.read_bytes()
        assert file.size == len(whole.read_bytes())


@pytest.mark.parametrize("copied", [1 << 20, 4])
def test_joining_some_of_the_documents(tmp_path, monkeypatch, copied):
    monkeypatch.setattr(megatron, "_COPIED_BYTES", copied)
    documents = [[[[1, 2]], [[3], [4, 5]], [[6, 7, 8]]], [], [[[6]], []], [[[7, 8, 9]]]]
    kept = [[True, False, True], [], [False, True], None]
    parts = [
        JoinedPart(write(tmp_path / f"part{n}", part), chosen if chosen is None else np.array(chosen, dtype=bool))
        for n, (part, chosen) in enumerate(zip(documents, kept, strict=True))
    ]
    join_indexed(lambda: parts, np.dtype("u2"), tmp_path / "joined")
    write(tmp_path / "whole", [[[1, 2]], [[6, 7, 8]], [], [[7, 8, 9]]])
    for joined, whole in zip(index_paths(tmp_path / "joined"), index_paths(tmp_path / "whole"), strict=True):
        assert joined.read_bytes() == whole.read_bytes()


GOOD = {"dtype_code": 8, "sizes": [3, 2], "pointers": [0, 6], "document_index": [0, 1, 2]}
BAD_INDICES = [
    (b"", "not an index, which begins with MMIDIDX"),
    (pack(**GOOD)[:33], "not an index, which begins with MMIDIDX"),
    (pack(**GOOD, magic=b"TNTIDX\0\0\0"), "not an index, which begins with MMIDIDX"),
    (pack(**GOOD, version=2), "version 2 of the index"),
    (pack(**GOOD | {"dtype_code": 6}), "dtype code 6"),
    (pack(**GOOD | {"dtype_code": 0}), "dtype code 0"),
    (pack(**GOOD)[:-1], "expected 82"),
    (pack(**GOOD) + b"\0", "expected 82"),
    (pack(**GOOD | {"sizes": [6, -1]}), "sequence 1 has a negative size"),
    (pack(**GOOD | {"sizes": [3, 3]}), "index expects 12; the file is truncated"),
    (pack(**GOOD | {"sizes": [2, 2]}), "index expects 8; the file belongs to another"),
    (pack(**GOOD | {"pointers": [0, 4]}), "sequence 1 at byte 4"),
    (pack(**GOOD | {"pointers": [0, 8]}), "sequence 1 at byte 8"),
    (pack(**GOOD | {"pointers": [0, 7]}), "sequence 1 at byte 7"),
    (pack(**GOOD | {"pointers": [-6, 0]}), "sequence 0 at byte -6"),
    (pack(**GOOD | {"pointers": [2**62, 0]}), "sequence 0 at byte 4611686018427387904"),
    (pack(**GOOD | {"document_index": []}), "does not go from 0 to 2"),
    (pack(**GOOD | {"document_index": [1, 2]}), "does not go from 0 to 2"),
    (pack(**GOOD | {"document_index": [0, 3]}), "does not go from 0 to 2"),
    (pack(**GOOD | {"document_index": [0, 2, 1, 2]}), "document 1 ends before it begins"),
    (
        pack(**GOOD)[:18] + struct.pack("<QQ", 2**64 - 1, 2**64 - 1) + pack(**GOOD)[34:],
        "18446744073709551615 seq",
    ),
]


@pytest.mark.parametrize(("index", "part"), BAD_INDICES)
def test_a_malformed_index(tmp_path, index, part):
    bin_path, idx_path = index_paths(write(tmp_path / "x", [[[5, 6, 7]], [[8, 9]]]))
    idx_path.write_bytes(index)
    with pytest.raises(DataError) as caught:
        IndexedFile.open(tmp_path / "x")
    assert one_line(caught.value, str(tmp_path / "x"), part)
    assert bin_path.stat().st_size == 10


def test_missing_and_truncated_files(tmp_path):
    for suffix in ("bin", "idx"):
        write(tmp_path / "x", [[[5, 6, 7]]])
        (tmp_path / f"x.{suffix}").unlink()
        with pytest.raises(DataError, match=rf"x\.{suffix} \(.*\) is missing"):
            IndexedFile.open(tmp_path / "x")
    for size in range(6):
        write(tmp_path / "x", [[[5, 6, 7]]])
        with (tmp_path / "x.bin").open("r+b") as file:
            file.truncate(size)
        with pytest.raises(DataError, match=r"x\.bin: .*truncated"):
            IndexedFile.open(tmp_path / "x")


def mutate(data, rng):
    """Change an index in ways that a disk, a program or an enemy might."""
    data = bytearray(data)
    match rng.randrange(6):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data += rng.randbytes(rng.randint(1, 40))
        case 3:
            place = rng.randrange(len(data))
            data[place : place + 8] = rng.randbytes(8)[: len(data) - place]
        case 4:
            place = rng.choice([9, 18, 26, *range(34, len(data) - 7, 4)])
            value = rng.choice([0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
            data[place : place + 8] = struct.pack("<Q", value)
        case 5:
            a, b = (rng.randrange(34, len(data) - 7, 4) for _ in range(2))
            data[a : a + 4], data[b : b + 4] = data[b : b + 4], data[a : a + 4]
    return bytes(data)


def test_mutated_indices_are_refused_in_one_line_or_read_within_bounds(tmp_path):
    rng = random.Random(20)
    documents = [[[number] * (number % 5 + 1)] for number in range(12)] + [[[1], [], [2, 3]]]
    bin_path, idx_path = index_paths(write(tmp_path / "x", documents))
    original, size = idx_path.read_bytes(), bin_path.stat().st_size
    refused = read = 0
    for _ in range(1500):
        data = original
        for _ in range(rng.randint(1, 3)):
            data = mutate(data, rng) if len(data) > 50 else data
        idx_path.write_bytes(data)
        try:
            indexed = IndexedFile.open(tmp_path / "x")
        except DataError as error:
            refused += 1
            assert one_line(error, str(tmp_path / "x"))
            continue
        read += 1
        lengths = np.diff(indexed.document_starts).tolist()
        documents = [indexed.read(number, 0, length) for number, length in enumerate(lengths)]
        assert sum(map(len, documents)) * indexed.dtype.itemsize == size
    assert refused > 1000 and read > 10
