import numpy as np
import pytest
from tiny_text import one_line

from hornbook.corpus.store_manifest import DOCUMENT_ROW, read_rows
from hornbook.errors import DataError
from hornbook.formats.npy import npy_bytes


def rows(count):
    return np.array([(number, number * 7, 2**40 + number) for number in range(count)], dtype=DOCUMENT_ROW)


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_round_trip_and_numpy_reads_it_too(tmp_path, count):
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
def test_anything_else_is_refused(tmp_path, data):
    path = tmp_path / "documents.npy"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_rows(path, 3)
    assert one_line(caught.value, str(path), "3 documents")
