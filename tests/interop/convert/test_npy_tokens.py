import numpy as np
import pytest
from damage import mutated, survive
from tiny_formats import documents, lists
from tiny_text import one_line

from hornbook.errors import DataError, StorageError, UserError
from hornbook.interop.convert.token_files import read_npy, write_npy
from hornbook.storage.faults import inject

ROWS = [[1, 2, 3], [40_000, 5, 6], [7, 8, 2**31 - 1], [9, 9, 9]]
WORDS = (b"'|O'", b"'<i8'", b"True", b"(", b")", b"99999999999999", b"-1", b"{" * 60, b"'shape'", b"\n", b"1e9")


def read(path):
    return lists(read_npy(path))


def header(descr="'<i4'", order="False", shape="(4, 3)", version=1):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


def test_written_as_numpy_writes(tmp_path):
    write_npy(tmp_path / "ours.npy", documents(ROWS))
    np.save(tmp_path / "theirs.npy", np.array(ROWS, dtype=np.int32))
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">i2", "<i4", ">u4", "<i8", ">i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_all_integers_are_read(tmp_path, dtype, order):
    rows = np.array([[1, 2, 3], [4, 5, 100]], dtype=dtype)
    np.save(tmp_path / "x.npy", np.asarray(rows, order=order))
    assert read(tmp_path / "x.npy") == rows.tolist()


@pytest.mark.parametrize("dtype", ["<u2", ">i4", "<i8"])
def test_an_array_of_one_dimension_is_one_document(tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.array([5, 6, 40_000 % 30_000], dtype=dtype))
    (document,) = read_npy(tmp_path / "x.npy")
    assert document.tokens.tolist() == [5, 6, 10_000]
    data = (tmp_path / "x.npy").read_bytes()
    assert np.frombuffer(data, dtype, 3, document.offset).tolist() == [5, 6, 10_000]


def test_later_versions_of_the_format(tmp_path):
    for version in (2, 3):
        (tmp_path / "x.npy").write_bytes(header(version=version) + np.arange(12, dtype="<i4").tobytes())
        assert read(tmp_path / "x.npy") == np.arange(12).reshape(4, 3).tolist()


def test_places(tmp_path):
    np.save(tmp_path / "x.npy", np.array(ROWS, dtype=np.int64))
    data = (tmp_path / "x.npy").read_bytes()
    for document in read_npy(tmp_path / "x.npy"):
        assert np.frombuffer(data, "<i8", 3, document.offset).tolist() == document.tokens.tolist()


@pytest.mark.parametrize("some", [[[1, 2], [3]], [[1, 2], []], [[]]])
def test_rows_of_several_lengths_cannot_be_written(tmp_path, some):
    with pytest.raises(UserError, match="add `sequence_length`"):
        write_npy(tmp_path / "x.npy", documents(some))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path):
    with inject("write", 1, "enospc"), pytest.raises(StorageError):
        write_npy(tmp_path / "x.npy", documents(ROWS))
    assert list(tmp_path.iterdir()) == []


BODY = bytes(48)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a .npy file"),
        (b"\x93NUMPY\x07\x00" + bytes(99), "not a .npy file"),
        (header()[:-3], "expected 63 at most|header ends"),
        (header() + BODY[:-1], "the header expects 112|the header expects"),
        (header() + BODY + b"\0", "the header expects"),
        (header(descr="'|O'") + BODY, "type '|O'; expected integers"),
        (header(descr="'<f4'") + BODY, "expected integers"),
        (header(descr="[('a', '<i4')]") + BODY, "expected integers"),
        (header(descr="'<M8[s]'") + BODY, "expected integers"),
        (header(shape="()") + BODY[:4], "expected .sequences, length. or .tokens,."),
        (header(shape="(2, 2, 3)") + BODY, "the shape is"),
        (header(shape="(4, -3)") + BODY, "the shape is"),
        (header(shape="(4.0, 3)") + BODY, "the shape is"),
        (header(shape="(True, 12)") + BODY, "the shape is"),
        (header(shape="(4611686018427387904, 0)"), "the shape is"),
        (header(shape="(4611686018427387904, 4611686018427387904)") + BODY, "the header expects"),
        (header(order="1") + BODY, "not that of an array"),
        (header(shape="__import__('os').system('true')") + BODY, "not that of an array"),
        (header(shape="(" * 900) + BODY, "not that of an array"),
        (header().replace(b"shape", b"shade") + BODY, "not that of an array"),
        (header(version=2)[:8] + b"\xff\xff\xff\x7f" + header()[10:] + BODY, "header ends at byte 2147483659"),
        (header() + np.array([-1] * 12, dtype="<i4").tobytes(), "row 0 has -1"),
    ],
)
def test_lying_headers(tmp_path, data, message):
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / "x.npy")
    assert one_line(caught.value, "x.npy")


def test_pickled_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[{}, 1]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="expected integers"):
        read(tmp_path / "x.npy")


def test_mutated_files_are_refused_or_read(tmp_path):
    write_npy(tmp_path / "x", documents(ROWS))
    original = (tmp_path / "x").read_bytes()
    refused, accepted = survive(read, tmp_path / "x", mutated(original, 1200, seed=3, words=WORDS))
    assert refused > 600 and accepted > 50


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_npy(tmp_path / "x.npy")
