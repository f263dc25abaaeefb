import struct

import pytest
from damage import mutated, survive
from tiny_formats import BERT_TFRECORD, EXAMPLE_TFRECORD
from tiny_text import one_line

from hornbook.errors import DataError, StorageError, UserError
from hornbook.interop.formats.tfrecord import find_tfrecords, frame, read_records, write_records
from hornbook.storage.faults import inject
from hornbook.storage.new_files import numeric_key

needs_files = pytest.mark.skipif(not EXAMPLE_TFRECORD.exists(), reason="../shared/data/tfrecord is not there")
RECORDS = [b"", b"a", b"hello" * 500, bytes(range(256))]


def contents(path):
    return [record.data for record in read_records([path])]


@needs_files
@pytest.mark.parametrize(("path", "count"), [(BERT_TFRECORD, 45), (EXAMPLE_TFRECORD, 4)])
def test_real_files_come_back_byte_for_byte(tmp_path, path, count):
    records = list(read_records([path]))
    assert len(records) == count and records[0].offset == 0
    assert records[1].offset == len(records[0].data) + 16
    write_records(tmp_path / "copy.tfrecord", [record.data for record in records])
    assert (tmp_path / "copy.tfrecord").read_bytes() == path.read_bytes()


def test_one_file(tmp_path):
    write_records(tmp_path / "x.tfrecord", iter(RECORDS))
    assert contents(tmp_path / "x.tfrecord") == RECORDS
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tfrecord"]


def test_a_folder_of_files_with_their_indices(tmp_path):
    records = [bytes([number]) * number for number in range(23)]
    write_records(tmp_path / "out", iter(records), records_per_file=2)
    files = find_tfrecords(tmp_path / "out")
    assert [file.name for file in files] == [f"data_{number}.tfrecord" for number in range(12)]
    assert [record.data for record in read_records(files)] == records
    assert [record.file for record in read_records(files)][-3:] == [10, 10, 11]
    for file in files:
        offset = 0
        for line in file.with_suffix(".index").read_text().splitlines():
            assert int(line.split()[0]) == offset
            offset += int(line.split()[1])
        assert offset == file.stat().st_size
    with pytest.raises(UserError, match="exists already"):
        write_records(tmp_path / "out", records, records_per_file=2)


def test_numeric_order(tmp_path):
    names = ["data_10", "data_9", "b1", "data_", "data_9b"]
    assert sorted((tmp_path / name for name in names), key=numeric_key) == [
        tmp_path / name for name in ("b1", "data_", "data_9", "data_9b", "data_10")
    ]


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        find_tfrecords(tmp_path / "x")
    with pytest.raises(DataError, match=r"no \.tfrecord file in the folder"):
        find_tfrecords(tmp_path)


@pytest.mark.parametrize("per_file", [None, 2])
def test_a_full_disk_leaves_nothing(tmp_path, per_file):
    with inject("write", 1, "enospc"), pytest.raises(StorageError, match="free"):
        write_records(tmp_path / "x", RECORDS, records_per_file=per_file)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_source_leaves_nothing(tmp_path):
    def records():
        yield b"a"
        raise DataError("broken")

    for per_file in (None, 5):
        with pytest.raises(DataError, match="broken"):
            write_records(tmp_path / "x", records(), records_per_file=per_file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (frame(b"abc")[:-1], "3 bytes, but 2 are left; the file is truncated"),
        (frame(b"abc")[:11], "11 bytes at byte 0 are not a record"),
        (frame(b"abc") + b"\0", "1 bytes at byte 19 are not a record"),
        (frame(b"abc")[:-1] + b"\0", "at byte 0 does not match its checksum"),
        (frame(b"abc").replace(b"abc", b"abd"), "at byte 0 does not match its checksum"),
        (
            b"\4" + frame(b"abc")[1:],
            "length at byte 0 does not match its checksum; the file is damaged",
        ),
        (frame(b"x") + b"\4" + frame(b"abc")[1:], "length at byte 17 does not match"),
        (b"\x1f\x8b\x08" + bytes(20), "compressed with gzip"),
    ],
)
def test_damage_is_reported_with_its_position(tmp_path, data, message):
    (tmp_path / "x.tfrecord").write_bytes(data)
    with pytest.raises(DataError) as caught:
        contents(tmp_path / "x.tfrecord")
    assert one_line(caught.value, "x.tfrecord", message)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 1 << 40])
def test_a_huge_length_with_a_good_checksum_allocates_nothing(tmp_path, length):
    header = struct.pack("<Q", length)
    (tmp_path / "x").write_bytes(header + frame(header)[-4:] + bytes(100))
    with pytest.raises(DataError, match=f"has {length} bytes, but 96 are left"):
        contents(tmp_path / "x")


def test_a_record_larger_than_any_of_ours(tmp_path):
    header = struct.pack("<Q", 17 << 20)
    with (tmp_path / "x").open("wb") as file:
        file.write(header + frame(header)[-4:])
        file.truncate(18 << 20)
    with pytest.raises(DataError, match="expected at most 16777216"):
        contents(tmp_path / "x")


def test_mutated_files_are_refused_or_read(tmp_path):
    original = b"".join(map(frame, RECORDS))
    refused, accepted = survive(contents, tmp_path / "x", mutated(original, 1200, seed=2))
    assert refused > 1000 and accepted > 10
