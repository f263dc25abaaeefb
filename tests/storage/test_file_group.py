"""Files that are written, hashed and synced side by side."""

import hashlib
import os
from pathlib import Path

import pytest

from hornbook.errors import StorageError
from hornbook.storage import FileGroup, Written, file_writer
from hornbook.storage.faults import count_operations, inject


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def content_of(data: bytes) -> Written:
    return Written(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def test_files_have_their_content_size_and_hash(tmp_path):
    with FileGroup(tmp_path) as group:
        group.write("a", [b"ab", b"", memoryview(bytearray(b"c"))])
        group.write("empty", [])
        assert group.written() == {"a": content_of(b"abc"), "empty": content_of(b"")}
        group.write("late", [b"x" * 100_000])
    assert group.written()["late"] == content_of(b"x" * 100_000)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"a": 3, "empty": 0, "late": 100_000}


def test_operations_have_a_fixed_order_and_syncs_are_awaited_at_the_end(tmp_path):
    with count_operations() as operations, FileGroup(tmp_path) as group:
        group.write("a", [b"1", b"2"])
        group.write("b", [b"3"])
        assert not any(name == "fsync" for name, _ in operations)
    found = [(name, path.name) for name, path in operations]
    opened_and_written = [("open", "a"), ("write", "a"), ("write", "a"), ("open", "b"), ("write", "b")]
    assert found == [*opened_and_written, ("fsync", "a"), ("fsync", "b")]


def test_every_file_is_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(file_writer, "flush_to_disk", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    with FileGroup(tmp_path) as group:
        for name in "abc":
            group.write(name, [name.encode()])
    assert sorted(synced) == sorted(path.stat().st_ino for path in tmp_path.iterdir())


@pytest.mark.parametrize(("operation", "number"), [("open", 2), ("write", 1), ("write", 3), ("fsync", 1), ("fsync", 2)])
def test_an_error_removes_all_files_and_closes_them(tmp_path, operation, number):
    before = open_descriptors()
    with (
        pytest.raises(StorageError, match="No space left"),
        inject(operation, number, "enospc"),
        FileGroup(tmp_path) as group,
    ):
        group.write("a", [b"1", b"2"])
        group.write("b", [b"3"])
    assert not list(tmp_path.iterdir())
    assert open_descriptors() == before


def test_a_failed_sync_is_reported(tmp_path, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_writer, "flush_to_disk", fail)
    with pytest.raises(StorageError, match="Input/output error"), FileGroup(tmp_path) as group:
        group.write("a", [b"1"])
    assert not list(tmp_path.iterdir())


def test_large_files_are_synced_while_they_are_written_and_the_first_failure_counts(tmp_path, monkeypatch):
    sizes = []

    def fail_first(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        if len(sizes) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_writer, "flush_to_disk", fail_first)
    monkeypatch.setattr(file_writer, "_SYNCED_AT", 10)
    monkeypatch.setattr(file_writer, "_SYNCS_AT_ONCE", 1)
    with pytest.raises(StorageError, match="Input/output error"), FileGroup(tmp_path) as group:
        group.write("a", [bytes(7)] * 4)
        group.written()
    assert len(sizes) == 3 and sizes == sorted(sizes) and sizes[0] >= 14 and sizes[-1] == 28
    assert not list(tmp_path.iterdir())


def test_chunks_that_wait_to_be_hashed_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(file_writer, "_UNHASHED", 10)
    with FileGroup(tmp_path) as group:
        for name in "abc":
            group.write(name, (bytes([number]) * 7 for number in range(20)))
            assert group._num_unhashed <= 10
    assert group.written()["a"] == content_of(b"".join(bytes([number]) * 7 for number in range(20)))
