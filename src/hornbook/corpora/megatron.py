r"""Megatron-LM's indexed data set: tokens in a ``.bin``, where sequences lie and documents begin in an ``.idx``.

    documents  [5 6 7] [8 9]                                        uint16, one sequence a document

    tokens.bin   05 00 06 00 07 00 08 00 09 00
    tokens.idx   "MMIDIDX\0\0"    1      8        2          3        3 2     0 6      0 1 2
                     magic     version  dtype  sequences  entries   sizes  pointers  document index, 3 entries

(little-endian: version u64, dtype code u8, two counts u64, sizes i32, pointers i64, document index i64.) Megatron-LM,
NeMo and GPT-NeoX read and write the same files. Opening reads the index once, 20 bytes a document, and compares it with
the sizes of the files: the sequences have to tile the ``.bin``. The tokens are mapped into memory.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hornbook.arrays import Int64s, Integers
from hornbook.errors import DataError
from hornbook.storage import BytesLike, FileWriter, Written, write_file
from hornbook.storage.system import storage_errors

MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1
HEADER: Final = np.dtype(
    [("magic", "V9"), ("version", "<u8"), ("dtype_code", "u1"), ("num_sequences", "<u8"), ("num_entries", "<u8")]
)
"""34 bytes, without gaps."""
DTYPES: Final = {
    code: np.dtype(name) for code, name in ((1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2"))
}
"""The integer types by their code; 6 and 7 are floating point, which no token is."""

_BUFFERED_TOKENS: Final = 1 << 19
_COPIED_BYTES: Final = 8 << 20


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 where all ids fit, else int32: the two types that Megatron-LM writes."""
    return DTYPES[8] if vocab_size <= 1 << 16 else DTYPES[4]


def index_paths(prefix: Path) -> tuple[Path, Path]:
    """The ``.bin`` and the ``.idx`` of a prefix."""
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


class IndexedWriter:
    """Writes a ``.bin`` as tokens come, and its ``.idx`` at the end of the ``with`` block; an error removes both.

        with IndexedWriter(folder / "tokens", np.uint16) as writer:
            writer.add_document([5, 6, 7])

    Memory holds the tokens until there are half a million, whatever was added last included, and all of these twice
    while they are written; and 4 bytes a sequence, 8 a document, some three times as much at the end.
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
        """Documents so far."""
        return len(self._document_index) - 1

    def add_sequence(self, tokens: ArrayLike) -> None:
        """Add a sequence to the document that is under way."""
        values = np.asarray(tokens)
        assert values.ndim == 1, "a sequence has one dimension"
        self._sizes.append(len(values))
        self._append(values)

    def end_document(self) -> None:
        """Let the next sequence begin a document."""
        self._document_index.append(len(self._sizes))

    def add_document(self, tokens: ArrayLike) -> None:
        """Add a document of one sequence, as loaders for GPT expect it."""
        self.add_sequence(tokens)
        self.end_document()

    def add_documents(self, tokens: Integers, sizes: Integers, sequences: Integers) -> None:
        """Add many documents at once.

        Args:
            tokens: of all their sequences, one after the other, [num_tokens].
            sizes: tokens of each sequence, [num_sequences].
            sequences: number of sequences of each document, [num_documents].
        """
        assert int(sizes.sum()) == len(tokens) and int(sequences.sum()) == len(sizes), "the parts make the whole"
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

    def __enter__(self) -> Self:
        return self

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
    """Write an ``.idx`` for sequences that follow one another in the ``.bin``.

    Args:
        path: the file.
        dtype: of the tokens, one of ``DTYPES``.
        sizes: [num_sequences], tokens of each.
        document_index: [num_documents + 1], the number of the first sequence of each document, and of all sequences.
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


def join_indexed(parts: Sequence[Path], prefix: Path) -> tuple[Written, Written]:
    """Write one indexed data set of the documents of several, in order; return size and hash of ``.bin`` and ``.idx``.

    The parts have one dtype and are as ``IndexedWriter`` leaves them; memory holds the index of one of them. Raises
    DataError if a part is damaged.
    """
    bin_path, idx_path = index_paths(prefix)

    def tokens() -> Iterator[bytes]:
        for path in (index_paths(part)[0] for part in parts):
            with storage_errors("read", path), path.open("rb") as file:
                while chunk := file.read(_COPIED_BYTES):
                    yield chunk

    return write_file(bin_path, tokens()), write_file(idx_path, _joined_index(parts))


def _joined_index(parts: Sequence[Path]) -> Iterator[BytesLike]:
    """The content of the ``.idx`` of parts laid end to end, a part at a time."""
    dtypes, starts, ends = set(), [0], [0]  # sequences and tokens before each part
    num_documents = 0
    for part in map(IndexedFile.open, parts):
        assert part.is_contiguous, "parts of sequences in the order of their bytes"
        dtypes.add(part.dtype)
        starts.append(starts[-1] + part.num_sequences)
        ends.append(ends[-1] + part.num_tokens)
        num_documents += part.num_documents
    [dtype] = dtypes
    yield _header(dtype, starts[-1], num_documents + 1)
    for part in map(IndexedFile.open, parts):
        yield part.sizes.data
    for end, part in zip(ends, map(IndexedFile.open, parts), strict=False):
        yield (part.pointers + end * dtype.itemsize).data
    yield bytes(8)
    for start, part in zip(starts, map(IndexedFile.open, parts), strict=False):
        yield (part.document_index[1:] + start).data


@dataclass(frozen=True, kw_only=True, eq=False)
class IndexedFile:
    """A ``.bin`` and its ``.idx``, checked and mapped into memory. A document is one or several sequences.

    Attributes:
        paths: the ``.bin`` and the ``.idx``.
        tokens: all of them, [num_tokens] of an integer dtype.
        sizes: int32[num_sequences], tokens of each sequence.
        pointers: int64[num_sequences], where in the ``.bin`` each begins, in bytes.
        document_index: int64[num_documents + 1], the first sequence of each document; the last entry is num_sequences.
        document_starts: int64[num_documents + 1], tokens before each document, counted in the order of documents.
        is_contiguous: the sequences lie in the ``.bin`` in their order, so that a document is one stretch.
    """

    paths: tuple[Path, Path]
    tokens: Integers
    sizes: NDArray[np.int32]
    pointers: Int64s
    document_index: Int64s
    document_starts: Int64s
    is_contiguous: bool

    @classmethod
    def open(cls, prefix: Path) -> Self:
        """Map the files ``prefix.bin`` and ``prefix.idx``. Raises DataError if one is missing or damaged."""
        bin_path, idx_path = index_paths(prefix)
        dtype, sizes, pointers, document_index = _read_index(idx_path)
        tokens = _map(bin_path, dtype, "the tokens")
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
        """The type of a token."""
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
        """The tokens of sequence ``number`` (0 .. num_sequences - 1), a read-only view."""
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number} of {self.num_sequences}")
        start = int(self.pointers[number]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.sizes[number])]

    def read(self, document: int, start: int, count: int) -> Integers:
        """Tokens ``start .. start + count - 1`` of a document (0 .. num_documents - 1); a view where that can be."""
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
    """Map a file as an array of whole items. Raises DataError if it is missing or ends within an item."""
    if not path.is_file():
        raise DataError(f"{path}: {what}, is missing; an indexed data set has a .bin and an .idx of one name")
    with storage_errors("read", path):
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise DataError(f"{path}: {size} bytes are no whole number of {dtype.name} tokens; the file is truncated")
        return np.memmap(path, dtype=dtype, mode="r") if size else np.empty(0, dtype=dtype)


def _read_index(path: Path) -> tuple[np.dtype[Any], NDArray[np.int32], Int64s, Int64s]:
    """Return the dtype, sizes, pointers and document index of an ``.idx``, each checked by itself."""
    data = np.asarray(_map(path, np.dtype("u1"), "the index"))
    if len(data) < HEADER.itemsize or data[: len(MAGIC)].tobytes() != MAGIC:
        raise DataError(f"{path}: does not begin as an index does (MMIDIDX); it is another file, or damaged")
    header = np.frombuffer(data, dtype=HEADER, count=1)[0]
    version, code, num_sequences, num_entries = (
        int(header[name]) for name in ("version", "dtype_code", "num_sequences", "num_entries")
    )
    if version != VERSION:
        raise DataError(f"{path}: its format version is {version}; expected {VERSION}")
    if code not in DTYPES:
        expected = ", ".join(f"{key} {dtype.name}" for key, dtype in DTYPES.items())
        raise DataError(f"{path}: its dtype code is {code}; expected one of {expected}")
    size = HEADER.itemsize + 12 * num_sequences + 8 * num_entries
    if num_sequences and len(data) == size + num_sequences:
        if others := int(np.count_nonzero(data[size:])):  # Megatron-LM's multimodal data sets have a mode a sequence
            raise DataError(
                f"{path}: is the index of a multimodal data set of Megatron-LM, and {others:,} of its "
                f"{num_sequences:,} sequences are no text (mode 0); hornbook reads text alone"
            )
    elif len(data) != size:
        raise DataError(f"{path}: has {len(data)} bytes; expected {size} for {num_sequences} sequences: it is damaged")
    sizes = np.frombuffer(data, "<i4", num_sequences, HEADER.itemsize)
    pointers = np.frombuffer(data, "<i8", num_sequences, HEADER.itemsize + 4 * num_sequences)
    document_index = np.frombuffer(data, "<i8", num_entries, HEADER.itemsize + 12 * num_sequences)
    if num_sequences and sizes.min() < 0:
        raise DataError(f"{path}: sequence {int(np.argmax(sizes < 0))} has a negative size; the file is damaged")
    if not num_entries or document_index[0] != 0 or document_index[-1] != num_sequences:
        raise DataError(f"{path}: its document index does not go from 0 to {num_sequences}; the file is damaged")
    if (falls := document_index[1:] < document_index[:-1]).any():
        raise DataError(f"{path}: document {int(np.argmax(falls))} ends before it begins; the file is damaged")
    return DTYPES[code], sizes, pointers, document_index


def _check_tiling(idx: Path, bin_path: Path, sizes: NDArray[np.int32], pointers: Int64s, tokens: Integers) -> bool:
    """Check that the sequences cover the ``.bin``, each token once; return whether they do so in their order."""
    num_bytes = tokens.nbytes
    lengths = sizes.astype(np.int64) * tokens.itemsize
    if total := int(lengths.sum()) - num_bytes:
        what = "is truncated, or belongs to another index" if total > 0 else "belongs to another index"
        raise DataError(f"{bin_path}: has {num_bytes} bytes; expected {num_bytes + total} by its index: it {what}")
    expected = np.cumsum(lengths) - lengths
    if np.array_equal(pointers, expected):
        return True
    order = np.lexsort((lengths, pointers))
    wrong = pointers[order] != np.cumsum(lengths[order]) - lengths[order]
    if wrong.any():
        number = int(order[np.argmax(wrong)])
        raise DataError(
            f"{idx}: sequence {number} at byte {int(pointers[number])} lies outside {bin_path.name} or overlaps "
            "another; the file is damaged"
        )
    return False
