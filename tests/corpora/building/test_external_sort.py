import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.corpora.building import duplicates
from hornbook.corpora.building.duplicates import num_buckets, previous_equal, scratch_array
from hornbook.errors import StorageError
from hornbook.text.quality.words import scramble


def pairs_of(keys):
    """Each number with the latest earlier one of the same key."""
    latest, found = {}, []
    for number, key in enumerate(map(tuple, keys.tolist())):
        if key in latest:
            found.append((number, latest[key]))
        latest[key] = number
    return found


def sorted_pairs(pieces, total, width, folder):
    found = np.concatenate([np.empty((0, 2), dtype=np.int64), *previous_equal(pieces, total, width, folder)])
    return sorted(map(tuple, found.tolist()))


@given(
    numbers=st.lists(st.integers(0, 20), max_size=300),
    width=st.integers(1, 2),
    file_bytes=st.sampled_from([96, 480, 1 << 20]),
    cuts=st.sets(st.integers(0, 300), max_size=3),
)
@settings(deadline=None, max_examples=80)
def test_every_number_meets_the_previous_one_of_its_key(tmp_path_factory, numbers, width, file_bytes, cuts):
    """Also where a file is read piece by piece, since one key is as frequent as all others together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "FILE_BYTES", file_bytes)
        patch.setattr(duplicates, "_ROWS_AT_ONCE", 7)
        keys = np.array([0 if number > 10 else number for number in numbers], dtype=np.uint64)
        columns = np.column_stack([scramble(keys // np.uint64(2)), keys][:width])
        pieces = zip(np.split(columns, sorted(cuts)), np.split(np.arange(len(keys)), sorted(cuts)), strict=True)
        found = sorted_pairs(pieces, len(keys), width, tmp_path_factory.getbasetemp())
    assert found == pairs_of(columns)


def test_files_are_small_enough_to_sort():
    assert [num_buckets(total, 3) for total in (0, 1, 1 << 21, 1 << 22, 1 << 23)] == [1, 1, 1, 2, 4]
    assert num_buckets(1 << 40, 3) == 512, "no more files than a process may open"


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path):
    with pytest.raises(StorageError, match="cannot reserve scratch"):
        scratch_array(tmp_path, (1 << 50,), np.int64)
    assert scratch_array(tmp_path, (3, 2), np.int64).tolist() == [[0, 0]] * 3
    assert scratch_array(tmp_path, (0, 5), np.uint8).shape == (0, 5)
