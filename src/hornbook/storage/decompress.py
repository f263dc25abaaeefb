"""Bounded reading of plain and compressed text, which also handles decompression bombs.

    path or open stream -> detect by first bytes: gzip, bzip2, xz, zstd, plain -> BufferedReader of the content

Content is decompressed on demand, at most one buffer at a time, so memory use is small: some 20 MB for a zstd bomb,
otherwise less than 1 MB, plus the dictionary that the format requires, up to 128 MiB. A stream that is truncated or
corrupt, or whose expansion ratio is implausible, is a ``DataError`` with the file and the offset in it.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from hornbook.errors import DataError, StorageError, UserError
from hornbook.extras import require
from hornbook.storage.system import as_storage_error, format_bytes

_BUFFER: Final = 256 << 10
_PIECE: Final = 64 << 10
_ZSTD_PIECE: Final = 512
"""Compressed bytes passed to zstd at once, which cannot limit its output; 4 bytes may expand to 128 KiB."""
_MAX_DICTIONARY: Final = 128 << 20

_MAGIC: Final = {
    "gzip": (b"\x1f\x8b",),
    "bzip2": tuple(b"BZh%d" % level + mark for level in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90")),
    "xz": (b"\xfd7zXZ\x00",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(b"%c\x2a\x4d\x18" % first for first in range(0x50, 0x60))),
}
_SUFFIXES: Final = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
COMPRESSED_SUFFIXES: Final = tuple(_SUFFIXES)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits for the decompressed size of a source; exceeding one raises ``DataError``."""

    total_bytes: int = 1 << 40
    """Size of the whole source, also of a plain one."""
    member_bytes: int = 4 << 30
    """Size of one compressed member; a gzip file is a sequence of members."""
    num_members: int = 100_000
    ratio: float = 200.0
    """Decompressed bytes per compressed byte, checked after ``ratio_after`` decompressed bytes."""
    ratio_after: int = 1 << 20


@dataclass(kw_only=True)
class InputMeter:
    """A counter of the bytes read from inputs, before decompression, for displaying progress."""

    num_bytes: int = 0


class _Decompressor(Protocol):
    """The interface of ``bz2`` and ``lzma``: one member, a limit for each output, and the bytes after its end."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class _Gzip:
    """One gzip member as a ``_Decompressor``."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _Zstd:
    """One zstd frame as a ``_Decompressor``; it ignores ``max_length``, so inputs must be short (``_ZSTD_PIECE``)."""

    needs_input = True

    def __init__(self) -> None:
        self._inner = _import_zstandard().ZstdDecompressor(max_window_size=_MAX_DICTIONARY).decompressobj()

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return cast(bytes, self._inner.decompress(data))

    @property
    def eof(self) -> bool:
        return cast(bool, self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return cast(bytes, self._inner.unused_data)


def _import_zstandard() -> Any:
    return require("zstandard", extra="zstd", purpose="reading .zst files")


_DECOMPRESSORS: Final[dict[str, Callable[[], _Decompressor]]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY),
    "zstd": _Zstd,
}


def open_text_source(
    source: Path | str | BinaryIO,
    limits: Limits | None = None,
    *,
    name: str | None = None,
    start: int = 0,
    meter: InputMeter | None = None,
) -> io.BufferedReader:
    """Open a plain or compressed file, or an open binary stream such as standard input, for bounded reading.

    The first bytes determine the compression, which must match the suffix of a file if that names one. Closing the
    result closes a file, but not a stream that was passed in.

    Args:
        source: the path or stream.
        limits: the limits for decompression; None means ``Limits()``.
        name: the name of the source in errors.
        start: added to the offsets in errors.
        meter: counts the bytes read.

    Raises:
        UserError: the file does not exist or is not accessible, or zstd needs an extra that is not installed.
        DataError: here or while reading, the stream is truncated, corrupt, or exceeds ``limits``.
    """
    limits = limits or Limits()
    if isinstance(source, str | Path):
        path = Path(source)
        stream, owned, name, promised = open_source(path), True, name or str(path), _SUFFIXES.get(path.suffix.lower())
    else:
        stream, owned, name, promised = source, False, name or getattr(source, "name", "stream"), None
    opened = _Source(stream, owned, str(name), limits, meter or InputMeter())
    try:
        found = opened.compression()
        if promised and found != promised:
            raise DataError(f"{name}: offset 0: expected {promised} data, by the suffix; rename or restore the file")
        return io.BufferedReader(_Unpacked(opened, found, limits, start) if found else opened, _BUFFER)
    except BaseException:
        opened.close()
        raise


def open_span(path: Path, start: int, end: int, meter: InputMeter | None = None) -> io.BufferedReader:
    """Open bytes ``start`` to ``end - 1`` of a plain file. Raises UserError if it is not accessible."""
    return io.BufferedReader(_Span(open_source(path), str(path), start, end, meter or InputMeter()), _BUFFER)


def is_plain(path: Path) -> bool:
    """Return whether the content of a file is not compressed. Raises UserError if it is not accessible."""
    with open_source(path) as file:
        begin = file.read(max(len(magic) for several in _MAGIC.values() for magic in several))
    return not any(begin.startswith(several) for several in _MAGIC.values())


def open_source(path: Path) -> BinaryIO:
    """Open a file without decompression. Raises UserError if it does not exist or is not accessible."""
    try:
        return path.open("rb")
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from error
    except OSError as error:
        raise as_storage_error("read", path, error) from error


class _Source(io.RawIOBase):
    """The raw bytes of a source, counted and with lookahead; plain text is read directly from it."""

    def __init__(self, stream: BinaryIO, owned: bool, name: str, limits: Limits, meter: InputMeter) -> None:
        self._stream, self._owned, self.name, self._limits, self._meter = stream, owned, name, limits, meter
        self._ahead = b""
        self.offset = 0

    def readable(self) -> bool:
        return True

    def compression(self) -> str | None:
        """Detect the compression from the first bytes, which remain to be read; read no more bytes than necessary."""
        magics = [(kind, magic) for kind, several in _MAGIC.items() for magic in several]
        while any(len(self._ahead) < len(magic) and magic.startswith(self._ahead) for _, magic in magics):
            if not (more := self._pull(1)):
                break
            self._ahead += more
        return next((kind for kind, magic in magics if self._ahead.startswith(magic)), None)

    def take(self, size: int) -> bytes:
        """Return up to ``size`` bytes; empty only at the end of the stream."""
        data, self._ahead = (self._ahead[:size], self._ahead[size:]) if self._ahead else (self._pull(size), b"")
        self.offset += len(data)
        return data

    def check_total(self, total: int) -> None:
        """Raise DataError if ``total`` bytes exceed the limit for a whole source."""
        if total > self._limits.total_bytes:
            limit = format_bytes(self._limits.total_bytes)
            raise DataError(f"{self.name}: over {limit} of text; split the source")

    def readinto(self, buffer: Any) -> int:
        data = self.take(len(buffer))
        self.check_total(self.offset)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._owned and not self.closed:
            self._stream.close()
        super().close()

    def _pull(self, size: int) -> bytes:
        try:
            data: bytes = getattr(self._stream, "read1", self._stream.read)(size) or b""
        except OSError as error:
            raise StorageError(f"cannot read {self.name}: {error.strerror}; check the file and the disk") from error
        self._meter.num_bytes += len(data)
        return data


class _Span(io.RawIOBase):
    """A range of the bytes of an open file, counted."""

    def __init__(self, file: BinaryIO, name: str, start: int, end: int, meter: InputMeter) -> None:
        self._file, self.name, self._remaining, self._meter = file, name, end - start, meter
        file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(min(len(buffer), self._remaining))
        except OSError as error:
            raise StorageError(f"cannot read {self.name}: {error.strerror}; check the file and the disk") from error
        buffer[: len(data)] = data
        self._remaining -= len(data)
        self._meter.num_bytes += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Unpacked(io.RawIOBase):
    """The decompressed content of a source with one or more compressed members."""

    def __init__(self, source: _Source, kind: str, limits: Limits, start: int) -> None:
        self._source, self._kind, self._limits, self._start = source, kind, limits, start
        self._piece = _ZSTD_PIECE if kind == "zstd" else _PIECE
        self._decompressor = _DECOMPRESSORS[kind]()
        zstd = (_import_zstandard().ZstdError,) if kind == "zstd" else ()
        self._errors = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, *zstd)  # of corrupt data
        self._input, self._output = b"", memoryview(b"")
        self._num_members, self._member_bytes, self._total_bytes = 1, 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output and not (self._decompressor.eof and not self._next_member()):
            self._output = memoryview(self._unpack(len(buffer)))
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()

    def _unpack(self, size: int) -> bytes:
        """Return the next bytes of this member, possibly empty before its end."""
        data = b""
        if self._decompressor.needs_input:
            data, self._input = self._input or self._source.take(self._piece), b""
            if not data:
                raise self._error(f"the {self._kind} data is truncated", "download or create the file again")
            if len(data) > self._piece:
                data, self._input = data[: self._piece], data[self._piece :]
        try:
            output = self._decompressor.decompress(data, size)
        except self._errors as error:
            reason = " ".join(str(error).split())
            raise self._error(f"corrupt {self._kind} data ({reason})", "download or create the file again") from error
        self._count(len(output))
        return output

    def _next_member(self) -> bool:
        """Begin the next member, after skipping padding; return whether there is one."""
        padding = b"\0" if self._kind in ("gzip", "xz") else b""
        rest = (self._decompressor.unused_data + self._input).lstrip(padding)
        while not rest:
            if not (more := self._source.take(self._piece)):
                return False
            rest = more.lstrip(padding)
        self._input = rest
        self._num_members += 1
        self._member_bytes = 0
        if self._num_members > self._limits.num_members:
            raise self._error(f"more than {self._limits.num_members} compressed members", "repack the file")
        self._decompressor = _DECOMPRESSORS[self._kind]()
        return True

    def _count(self, size: int) -> None:
        self._member_bytes += size
        self._total_bytes += size
        compressed = max(1, self._source.offset - len(self._input))
        if self._total_bytes > self._limits.ratio_after and self._total_bytes > self._limits.ratio * compressed:
            ratio = f"{self._limits.ratio:g}"
            raise self._error(f"unpacks to over {ratio} times its size", "if you trust it, unpack it first")
        if self._member_bytes > self._limits.member_bytes:
            limit = format_bytes(self._limits.member_bytes)
            raise self._error(f"one {self._kind} member unpacks to over {limit}", "if you trust it, unpack it first")
        self._source.check_total(self._total_bytes)

    def _error(self, what: str, remedy: str) -> DataError:
        offset = self._start + self._source.offset - len(self._input)
        return DataError(f"{self._source.name}: offset {offset}: {what}; {remedy}")
