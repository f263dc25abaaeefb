"""Reading and writing TFRecord files, records of bytes with a length and two checksums each, without TensorFlow.

    6c 00 00 00 00 00 00 00   f5 da b0 d7      0a 6a ...        34 5d 73 00
    length, u64               its CRC          the record       CRC of the record        masked CRC-32C, u32

    write_records(Path("x.tfrecord"), records)                        one file, by one rename
    write_records(Path("folder"), records, records_per_file=100)      data_0.tfrecord, data_0.index, data_1.tfrecord ...

The ``.index`` files have a line with the offset and size of each record, like those of ``tfrecord2idx``, for readers
that divide a file among them. The trade-off: numpy computes the checksums, at some 100 MB per second.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import DataError
from hornbook.interop.formats.crc32c import masked_crc32c
from hornbook.interop.formats.protobuf import Feature, Malformed, decode_example
from hornbook.storage import FileWriter, replace_file, write_file
from hornbook.storage.new_files import new_folder, numeric_key
from hornbook.storage.system import open_regular, storage_errors

MAX_RECORD_BYTES: Final = 16 << 20
"""Some five million tokens; integers of one byte take eight times as much in memory."""

_LENGTH: Final = struct.Struct("<Q")
_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_BUFFERED_BYTES: Final = 4 << 20
_GZIP: Final = b"\x1f\x8b"


class Record(NamedTuple):
    """A record, the index of its file in the list of files, and its offset there in bytes."""

    file: int
    offset: int
    data: bytes


def find_tfrecords(path: Path) -> tuple[Path, ...]:
    """Return the file, or the files of a folder, ``data_2`` before ``data_10``. Raises DataError if there is none."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected a TFRecord file, or a folder of .tfrecord files")
        return (path,)
    with storage_errors("read the folder", path):
        found = sorted((file for file in path.glob("*.tfrecord*") if file.is_file()), key=numeric_key)
    if not found:
        raise DataError(f"{path}: no .tfrecord file in the folder; check the path")
    return tuple(found)


def begins_with_record(path: Path) -> bool:
    """Return whether a file begins with a record, by its first checksum."""
    with storage_errors("read", path), open_regular(path) as file:
        header = file.read(_HEADER.size)
    return len(header) == _HEADER.size and masked_crc32c(header[: _LENGTH.size]) == _HEADER.unpack(header)[1]


def read_records(files: Iterable[Path]) -> Iterator[Record]:
    """Yield the records of files, one at a time. Raises DataError if a file is truncated or damaged."""
    for number, path in enumerate(files):
        with storage_errors("read", path), open_regular(path, buffering=1 << 20) as file:
            offset, size = 0, path.stat().st_size
            while offset < size:
                header = file.read(_HEADER.size)
                _check_header(path, offset, header, size)
                length, _ = _HEADER.unpack(header)
                data, footer = file.read(length), file.read(_FOOTER.size)
                if len(data) + len(footer) != length + _FOOTER.size:
                    raise DataError(
                        f"{path}: the record at byte {offset} is truncated: the file became shorter while it was read"
                    )
                _check_record(path, offset, data, footer)
                yield Record(number, offset, data)
                offset += _HEADER.size + length + _FOOTER.size


def read_examples(files: Iterable[Path]) -> Iterator[tuple[Record, dict[str, Feature]]]:
    """Yield (record, features of its Example) of files. Raises DataError if one is damaged, or not an Example."""
    paths = tuple(files)
    for record in read_records(paths):
        yield record, parse_example(record.data, f"{paths[record.file]}: the record at byte {record.offset}")


def parse_example(record: bytes, where: str) -> dict[str, Feature]:
    """Return the features of a record. Raises DataError, with ``where`` as prefix, if it is not an Example."""
    try:
        return decode_example(record)
    except Malformed as error:
        raise DataError(f"{where} is not a tf.train.Example: {error}; check the path, or restore the file") from None


class NumberedRecords:
    """Random access to the records of a memory-mapped file, with an index of 8 bytes per record.

    Attributes:
        offsets: int64[num_records], offset of each record in bytes.

    Raises:
        DataError: the lengths in the headers do not add up to the size of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage_errors("read", path):
            size = path.stat().st_size
            mapped: NDArray[np.uint8] = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        self._data = mapped.data
        offsets = array("q")
        offset = 0
        while offset < size:
            if not offset or offset + _HEADER.size > size:
                _check_header(path, offset, bytes(self._data[offset : offset + _HEADER.size]), size)
            offsets.append(offset)
            offset += _HEADER.size + _LENGTH.unpack_from(self._data, offset)[0] + _FOOTER.size
        if offset != size:
            raise DataError(f"{path}: the record at byte {offsets[-1]} exceeds the end; the file is truncated")
        self.offsets = np.array(offsets, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.offsets)

    def record(self, number: int) -> bytes:
        """Return the bytes of record ``number`` (0 to len - 1). Raises DataError if a checksum does not match."""
        offset = int(self.offsets[number])
        start = offset + _HEADER.size
        _check_header(self._path, offset, bytes(self._data[offset:start]), len(self._data))
        end = start + _LENGTH.unpack_from(self._data, offset)[0]
        data = bytes(self._data[start:end])
        _check_record(self._path, offset, data, bytes(self._data[end : end + _FOOTER.size]))
        return data


def write_records(path: Path, records: Iterable[bytes], *, records_per_file: int | None = None) -> None:
    """Write records to a file, or to a new folder of files with ``records_per_file`` each, by one rename.

    Raises UserError if the folder exists, or another process is writing it; an error leaves nothing behind.
    """
    if records_per_file is None:
        replace_file(path, buffered(map(frame, records)))
        return
    rest = iter(records)
    with new_folder(path) as folder:
        for number in count():
            if not _write_shard(folder / f"data_{number}", islice(rest, records_per_file)):
                break


def frame(record: bytes) -> bytes:
    """Return a record with its length and checksums, as written to a file."""
    assert len(record) <= MAX_RECORD_BYTES, "readers reject longer records"
    length = struct.pack("<Q", len(record))
    return b"".join((length, _FOOTER.pack(masked_crc32c(length)), record, _FOOTER.pack(masked_crc32c(record))))


def buffered(chunks: Iterable[bytes]) -> Iterator[bytearray]:
    """Yield the same bytes in larger pieces."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        if len(buffer) >= _BUFFERED_BYTES:
            yield buffer
            buffer = bytearray()
    yield buffer


def _write_shard(stem: Path, records: Iterator[bytes]) -> int:
    """Write ``stem.tfrecord`` and ``stem.index``, unless there are no records; return the number of records."""
    first = next(records, None)
    if first is None:
        return 0
    lines: list[str] = []

    def framed() -> Iterator[bytes]:
        offset = 0
        for data in map(frame, chain((first,), records)):
            lines.append(f"{offset} {len(data)}\n")
            offset += len(data)
            yield data

    with FileWriter(stem.with_suffix(".tfrecord")) as writer:
        for chunk in buffered(framed()):
            writer.write(chunk)
    write_file(stem.with_suffix(".index"), "".join(lines).encode())
    return len(lines)


def _check_record(path: Path, offset: int, data: bytes, footer: bytes) -> None:
    if masked_crc32c(data) != _FOOTER.unpack(footer)[0]:
        raise DataError(f"{path}: the record at byte {offset} does not match its checksum; the file is damaged")


def _check_header(path: Path, offset: int, header: bytes, size: int) -> None:
    """Raise DataError unless the length in a header matches its checksum and the rest of the file."""
    if not offset and header.startswith(_GZIP):
        raise DataError(f"{path}: compressed with gzip; decompress it first, for example with `gunzip`")
    if len(header) < _HEADER.size:
        raise DataError(f"{path}: {size - offset} bytes at byte {offset} are not a record; the file is truncated")
    length, crc = _HEADER.unpack(header)
    if masked_crc32c(header[:8]) != crc:
        cause = "the file is damaged" if offset else "the file is damaged, or not a TFRecord file"
        raise DataError(f"{path}: the length at byte {offset} does not match its checksum; {cause}")
    left = max(0, size - offset - _HEADER.size - _FOOTER.size)
    if length > left:
        raise DataError(
            f"{path}: the record at byte {offset} has {length} bytes, but {left} are left; the file is truncated"
        )
    if length > MAX_RECORD_BYTES:
        raise DataError(f"{path}: the record at byte {offset} has {length} bytes; expected at most {MAX_RECORD_BYTES}")
