"""Arrays in numpy's own format: what numpy writes is read, and anything else is one line."""

import numpy as np
import pytest
from tiny_text import one_line

from hornbook.errors import DataError, StorageError
from hornbook.formats.npy import map_array, npy_bytes, npy_header, read_header

PAIR = np.dtype([("a", "<i4"), ("b", "<i8")])


@pytest.mark.parametrize("dtype", [np.dtype("<u8"), np.dtype(">i2"), PAIR], ids=str)
@pytest.mark.parametrize("shape", [(0,), (5,), (3, 2), (4, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes_is_mapped(tmp_path, dtype, shape, order):
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype), order=order)
    np.save(tmp_path / "x.npy", array)
    found = map_array(tmp_path / "x.npy", dtype)
    assert found.dtype == dtype and np.array_equal(found, array)
    assert (tmp_path / "x.npy").read_bytes() == npy_bytes(array)


def test_a_header_and_its_items_are_a_file(tmp_path):
    array = np.arange(6, dtype=np.int32).reshape(3, 2)
    (tmp_path / "x.npy").write_bytes(npy_header(array.shape, array.dtype) + array.tobytes())
    assert np.array_equal(np.load(tmp_path / "x.npy"), array)
    assert read_header(tmp_path / "x.npy").shape == (3, 2)


@pytest.mark.parametrize("size", [-1, 1])
def test_another_size_or_type_is_refused(tmp_path, size):
    data = npy_bytes(np.arange(6, dtype="<u8"))
    (tmp_path / "x.npy").write_bytes(data[:size] if size < 0 else data + b"\0")
    with pytest.raises(DataError, match="but the header expects"):
        map_array(tmp_path / "x.npy", np.dtype("<u8"))
    with pytest.raises(DataError, match=r"the dtype is '<u8'; expected int64") as caught:
        map_array(tmp_path / "x.npy", np.dtype("<i8"))
    assert one_line(caught.value, "x.npy")


def test_a_missing_file(tmp_path):
    with pytest.raises(StorageError):
        read_header(tmp_path / "x.npy")
