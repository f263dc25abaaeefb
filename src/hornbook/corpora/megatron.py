r"""Megatron-LM's indexed data set: tokens in a ``.bin``, positions of sequences and documents in an ``.idx``.

    documents  [5 6 7] [8 9]                                        uint16, one sequence per document

    tokens.bin   05 00 06 00 07 00 08 00 09 00
    tokens.idx   "MMIDIDX\0\0"    1      8        2          3        3 2     0 6      0 1 2
                     magic     version  dtype  sequences  entries   sizes  pointers  document index, 3 entries

(Little-endian: version u64, dtype code u8, two counts u64, sizes i32, pointers i64, document index i64.) Megatron-LM,
NeMo and GPT-NeoX read and write the same files. Opening reads the index once, 20 bytes per document, and checks it
against the file sizes: the sequences must cover the ``.bin`` exactly once. The tokens are memory-mapped.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hornbook.arrays import Bools, Int64s, Integers
from hornbook.errors import DataError
from hornbook.storage import BytesLike, FileWriter, Written, write_file
from hornbook.storage.system import open_regular, storage_errors

MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1
HEADER: Final = np.dtype(
    [("magic", "V9"), ("version", "<u8"), ("dtype_code", "u1"), ("num_sequences", "<u8"), ("num_entries", "<u8")]
)
"""34 bytes, without padding."""
DTYPES: Final = {
    code: np.dtype(name) for code, name in ((1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2"))
}
"""The integer dtypes by code; codes 6 and 7 are floating point and do not occur for tokens."""

_BUFFERED_TOKENS: Final = 1 << 19
_COPIED_BYTES: Final = 8 << 20


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return uint16 if it can represent all ids, else int32, the two dtypes that Megatron-LM writes."""
    return DTYPES[8] if vocab_size <= 1 << 16 else DTYPES[4]


def index_paths(prefix: Path) -> tuple[Path, Path]:
    """Return the paths of the ``.bin`` and the ``.idx`` of a prefix."""
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


class IndexedWriter(AbstractContextManager["IndexedWriter"]):
    """A context manager that writes a ``.bin`` incrementally and its ``.idx`` on exit; an error removes both.

        with IndexedWriter(folder / "tokens", np.uint16) as writer:
            writer.add_document([5, 6, 7])

    Memory holds the last addition and up to half a million tokens before it, twice while they are written, and 4 bytes
    per sequence and 8 per document, about three times that at the end.
    """

    def __init__(self, prefix: Path, dtype: DTypeLike) -> None:
        self._bin, self._idx = index_paths(prefix)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        assert self.dtype in DTYPES.values(), f"no dtype code for {dtype}"
        self._sizes, self._document_index = array("i"), array("q", [0])
        self._pending: list[NDArray[Any]] = []
        self._num_pending = self.num_tokens = 0
        self._writer = FileWriter(self._bin)

    @property
    def num_documents(self) -> int:
        """Number of documents so far."""
        return len(self._document_index) - 1

    def add_sequence(self, tokens: ArrayLike) -> None:
        """Append a sequence to the current document."""
        values = np.asarray(tokens)
        assert values.ndim == 1, "a sequence has one dimension"
        self._sizes.append(len(values))
        self._append(values)

    def end_document(self) -> None:
        """End the current document."""
        self._document_index.append(len(self._sizes))

    def add_document(self, tokens: ArrayLike) -> None:
        """Append a document of one sequence, as loaders for GPT expect."""
        self.add_sequence(tokens)
        self.end_document()

    def add_documents(self, tokens: Integers, sizes: Integers, sequences: Integers) -> None:
        """Append several documents.

        Args:
            tokens: the concatenated tokens of their sequences, [num_tokens].
            sizes: number of tokens of each sequence, [num_sequences].
            sequences: number of sequences of each document, [num_documents].
        """
        assert int(sizes.sum()) == len(tokens) and int(sequences.sum()) == len(sizes), "the sizes add up"
        before = len(self._sizes)
        self._sizes.frombytes(sizes.astype(np.intc).tobytes())
        self._document_index.frombytes((before + np.cumsum(sequences, dtype=np.int64)).tobytes())
        self._append(tokens)

    def _append(self, values: Integers) -> None:
        converted = np.ascontiguousarray(values, dtype=self.dtype)
        assert values.dtype == self.dtype or np.array_equal(converted, values), f"a token does not fit {self.dtype}"
        self._pending.append(converted)
        self._num_pending += len(converted)
        self.num_tokens += len(converted)
        if self._num_pending >= _BUFFERED_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write(np.concatenate(self._pending).data)
        self._pending, self._num_pending = [], 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._writer.abandon()
            return
        try:
            assert self._document_index[-1] == len(self._sizes), "the last document was not ended"
            with self._writer:
                self._flush()
            write_index(self._idx, self.dtype, np.asarray(self._sizes), np.asarray(self._document_index))
        except BaseException:
            self._writer.abandon()
            raise


def write_index(path: Path, dtype: np.dtype[Any], sizes: NDArray[np.int32], document_index: Int64s) -> Written:
    """Write an ``.idx`` for sequences that are contiguous and in order in the ``.bin``.

    Args:
        path: the file.
        dtype: the dtype of the tokens, one of ``DTYPES``.
        sizes: [num_sequences], number of tokens of each sequence.
        document_index: [num_documents + 1], the first sequence of each document, then the number of sequences.
    """
    header = _header(dtype, len(sizes), len(document_index))
    pointers = np.zeros(len(sizes), dtype="<i8")
    np.cumsum(sizes[:-1], dtype=np.int64, out=pointers[1:])
    pointers *= dtype.itemsize
    return write_file(path, (header, sizes.astype("<i4").data, pointers.data, document_index.astype("<i8").data))


def _header(dtype: np.dtype[Any], num_sequences: int, num_entries: int) -> bytes:
    codes = {kind: code for code, kind in DTYPES.items()}
    header = np.zeros(1, dtype=HEADER)
    header[0] = (MAGIC, VERSION, codes[dtype], num_sequences, num_entries)
    return header.tobytes()


class JoinedPart(NamedTuple):
    """An indexed data set to join.

    Attributes:
        prefix: its prefix.
        kept: whether to join each document, bool[num_documents]; None for all.
    """

    prefix: Path
    kept: Bools | None = None

    def open(self) -> "IndexedFile":
        """Open the data set. Raises DataError if it is damaged."""
        opened = IndexedFile.open(self.prefix)
        assert opened.is_contiguous, "IndexedWriter writes sequences in order"
        return opened

    def lengths(self) -> tuple[NDArray[np.int32], Int64s]:
        """Return the sizes of the sequences to join, int32[n], and the number of sequences of each document."""
        opened = self.open()
        sequences = np.diff(opened.document_index)
        if self.kept is None:
            return opened.sizes, sequences
        return opened.sizes[np.repeat(self.kept, sequences)], sequences[self.kept]

    def tokens(self) -> Iterator[BytesLike]:
        """Yield the tokens to join, some megabytes at a time."""
        if self.kept is None:
            path = index_paths(self.prefix)[0]
            with storage_errors("read", path), open_regular(path) as file:
                while chunk := file.read(_COPIED_BYTES):
                    yield chunk
            return
        opened = self.open()
        edges = np.flatnonzero(np.diff(self.kept, prepend=False, append=False)).reshape(-1, 2)
        for start, end in opened.document_starts[edges].tolist():  # runs of documents
            for first in range(start, end, _COPIED_BYTES // opened.dtype.itemsize):
                yield opened.tokens[first : min(end, first + _COPIED_BYTES // opened.dtype.itemsize)].tobytes()


def join_indexed(
    parts: Callable[[], Iterable[JoinedPart]], dtype: np.dtype[Any], prefix: Path
) -> tuple[Written, Written]:
    """Concatenate indexed data sets; return size and hash of the new ``.bin`` and ``.idx``.

    ``parts`` returns them anew for each pass, so memory holds the index of one of them. They must have this dtype and
    have been written by ``IndexedWriter``. Raises DataError if a part is damaged.
    """
    bin_path, idx_path = index_paths(prefix)
    tokens = write_file(bin_path, _merged(part.tokens() for part in parts()))
    return tokens, write_file(idx_path, _joined_index(parts, dtype))


def _merged(pieces: Iterable[Iterator[BytesLike]]) -> Iterator[BytesLike]:
    """Join small pieces, since each one written is a system call."""
    waiting: list[BytesLike] = []
    size = 0
    for piece in chain.from_iterable(pieces):
        waiting.append(piece)
        size += len(piece)
        if size >= _COPIED_BYTES:
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _joined_index(parts: Callable[[], Iterable[JoinedPart]], dtype: np.dtype[Any]) -> Iterator[BytesLike]:
    """Yield the content of the ``.idx`` of the concatenated parts, one part at a time."""
    counts = [(len(sizes), len(sequences)) for sizes, sequences in (part.lengths() for part in parts())]
    yield _header(dtype, sum(count for count, _ in counts), sum(count for _, count in counts) + 1)
    for part in parts():
        yield part.lengths()[0].astype("<i4").data
    end = 0
    for part in parts():
        ends = end + np.cumsum(part.lengths()[0], dtype=np.int64) * dtype.itemsize
        yield np.concatenate(([end], ends[:-1])).astype("<i8").data if len(ends) else b""
        end = int(ends[-1]) if len(ends) else end
    yield bytes(8)
    last = 0
    for part in parts():
        ends = last + np.cumsum(part.lengths()[1], dtype=np.int64)
        yield ends.astype("<i8").data
        last = int(ends[-1]) if len(ends) else last


@dataclass(frozen=True, kw_only=True, eq=False)
class IndexedFile:
    """A ``.bin`` and its ``.idx``, checked and memory-mapped. A document consists of one or more sequences.

    Attributes:
        paths: the ``.bin`` and the ``.idx``.
        tokens: [num_tokens] of an integer dtype, the whole ``.bin``; those of a URL can only be sliced.
        sizes: int32[num_sequences], number of tokens of each sequence.
        pointers: int64[num_sequences], byte offset of each sequence in the ``.bin``.
        document_index: int64[num_documents + 1], the first sequence of each document; the last entry is num_sequences.
        document_starts: int64[num_documents + 1], number of tokens in the documents before each document.
        is_contiguous: whether the sequences are in order in the ``.bin``, so that each document is one slice.
    """

    paths: tuple[Path, Path]
    tokens: Integers
    sizes: NDArray[np.int32]
    pointers: Int64s
    document_index: Int64s
    document_starts: Int64s
    is_contiguous: bool

    @classmethod
    def open(cls, prefix: Path, tokens: Any = None) -> Self:
        """Memory-map ``prefix.bin``, unless ``tokens`` are given, and read ``prefix.idx``.

        Raises DataError if a file is missing or damaged.
        """
        bin_path, idx_path = index_paths(prefix)
        dtype, sizes, pointers, document_index = _read_index(idx_path)
        tokens = _map(bin_path, dtype, "the tokens") if tokens is None else tokens
        is_contiguous = _check_tiling(idx_path, bin_path, sizes, pointers, tokens)
        ends = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=ends[1:])
        return cls(
            paths=(bin_path, idx_path),
            tokens=tokens,
            sizes=sizes,
            pointers=pointers,
            document_index=document_index,
            document_starts=ends[document_index],
            is_contiguous=is_contiguous,
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self.tokens.dtype

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.sizes)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_index) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        return len(self.tokens)

    def sequence(self, number: int) -> Integers:
        """Return a read-only view of the tokens of sequence ``number`` (0 to num_sequences - 1)."""
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number} of {self.num_sequences}")
        start = int(self.pointers[number]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.sizes[number])]

    def read(self, document: int, start: int, count: int) -> Integers:
        """Return tokens ``start`` to ``start + count - 1`` of a document (from 0), as a view if possible."""
        if not 0 <= document < len(self.document_index) - 1:
            raise IndexError(f"document {document} of {self.num_documents}")
        first, end = int(self.document_starts[document]), int(self.document_starts[document + 1])
        if not 0 <= start <= start + count <= end - first:
            raise IndexError(f"tokens {start} to {start + count} of document {document}, which has {end - first}")
        if self.is_contiguous:
            return self.tokens[first + start : first + start + count]
        numbers = range(int(self.document_index[document]), int(self.document_index[document + 1]))
        whole = [self.sequence(number) for number in numbers]
        return np.concatenate([*whole, self.tokens[:0]])[start : start + count]


def _map(path: Path, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """Memory-map a file as an array. Raises DataError if it is missing, or its size is not a multiple of an item's."""
    if not path.is_file():
        raise DataError(f"{path} ({what}) is missing; an indexed data set needs a .bin and an .idx with the same name")
    with storage_errors("read", path):
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise DataError(
                f"{path}: {size} bytes are not a whole number of {dtype.name} tokens: the file is truncated; restore it"
            )
        return np.memmap(path, dtype=dtype, mode="r") if size else np.empty(0, dtype=dtype)


def _read_index(path: Path) -> tuple[np.dtype[Any], NDArray[np.int32], Int64s, Int64s]:
    """Return the dtype, sizes, pointers and document index of an ``.idx``, after checking each of them."""
    data = np.asarray(_map(path, np.dtype("u1"), "the index"))
    if len(data) < HEADER.itemsize or data[: len(MAGIC)].tobytes() != MAGIC:
        raise DataError(f"{path}: not an index, which begins with MMIDIDX; restore the file, or choose another one")
    header = np.frombuffer(data, dtype=HEADER, count=1)[0]
    version, code, num_sequences, num_entries = (
        int(header[name]) for name in ("version", "dtype_code", "num_sequences", "num_entries")
    )
    if version != VERSION:
        raise DataError(f"{path}: format version {version} of the index; expected {VERSION}; build the data set again")
    if code not in DTYPES:
        expected = ", ".join(f"{key} {dtype.name}" for key, dtype in DTYPES.items())
        raise DataError(f"{path}: dtype code {code}; expected one of {expected}; build the data set again")
    size = HEADER.itemsize + 12 * num_sequences + 8 * num_entries
    if num_sequences and len(data) == size + num_sequences:
        if others := int(np.count_nonzero(data[size:])):  # Megatron-LM's multimodal index has a mode per sequence
            raise DataError(
                f"{path}: the index of a multimodal data set of Megatron-LM, in which {others:,} of {num_sequences:,} "
                "sequences are not text (mode 0); hornbook reads only text"
            )
    elif len(data) != size:
        raise DataError(f"{path}: {len(data)} bytes; expected {size} for {num_sequences} sequences: it is damaged")
    sizes = np.frombuffer(data, "<i4", num_sequences, HEADER.itemsize)
    pointers = np.frombuffer(data, "<i8", num_sequences, HEADER.itemsize + 4 * num_sequences)
    document_index = np.frombuffer(data, "<i8", num_entries, HEADER.itemsize + 12 * num_sequences)
    if num_sequences and sizes.min() < 0:
        raise DataError(f"{path}: sequence {int(np.argmax(sizes < 0))} has a negative size; the file is damaged")
    if not num_entries or document_index[0] != 0 or document_index[-1] != num_sequences:
        raise DataError(f"{path}: the document index does not go from 0 to {num_sequences}; the file is damaged")
    if (falls := document_index[1:] < document_index[:-1]).any():
        raise DataError(f"{path}: document {int(np.argmax(falls))} ends before it begins; the file is damaged")
    return DTYPES[code], sizes, pointers, document_index


def _check_tiling(idx: Path, bin_path: Path, sizes: NDArray[np.int32], pointers: Int64s, tokens: Integers) -> bool:
    """Check that the sequences cover each token of the ``.bin`` once; return whether they are in order."""
    num_bytes = tokens.nbytes
    lengths = sizes.astype(np.int64) * tokens.itemsize
    if total := int(lengths.sum()) - num_bytes:
        what = "is truncated or belongs to another index" if total > 0 else "belongs to another index"
        raise DataError(f"{bin_path}: {num_bytes} bytes, but its index expects {num_bytes + total}; the file {what}")
    expected = np.cumsum(lengths) - lengths
    if np.array_equal(pointers, expected):
        return True
    order = np.lexsort((lengths, pointers))
    wrong = pointers[order] != np.cumsum(lengths[order]) - lengths[order]
    if wrong.any():
        number = int(order[np.argmax(wrong)])
        raise DataError(
            f"{idx}: sequence {number} at byte {int(pointers[number])} is outside {bin_path.name} or overlaps another; "
            "the file is damaged"
        )
    return False
