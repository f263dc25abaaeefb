"""The simpler files of token ids: streams of nanoGPT and llm.c, ``.npy`` of system A, TFRecords of systems B and D.

    nanogpt    train.bin    uint16 tokens, little-endian, without a header
    llm.c      train.bin    256 int32: magic, version, number of tokens, zeros; then the tokens
                            20240520, version 1: uint16 (GPT-2)      20240801, version 7: uint32 (Llama 3)

    npy        {'descr': '<i4', 'fortran_order': False, 'shape': (1165, 128), }  ...tokens
    tfrecord   {"input_ids": [464, 3797, 3332, ...]}      one record per sequence, of equal or different lengths

A stream, or a one-dimensional array, is one document, in which texts may be separated by an end-of-text token. llm.c's
header must match the file size (its ``dev/data/data_common.py`` defines the layout). Raw tokens cannot be distinguished
from other bytes, so nanoGPT's format is never detected. Reading ``.npy`` memory-maps any integer dtype; writing uses
int32, which numpy and TensorFlow can read directly, and iterates the documents twice, the first time to count them.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import DataError, UserError
from hornbook.formats.foreign import name_foreign
from hornbook.formats.npy import map_items, npy_header, read_header
from hornbook.interop.convert.token_documents import TOKEN, Documents, TokenDocument, as_tokens
from hornbook.interop.formats.protobuf import encode_example, integers
from hornbook.interop.formats.tfrecord import (
    MAX_RECORD_BYTES,
    begins_with_record,
    buffered,
    find_tfrecords,
    read_examples,
    write_records,
)
from hornbook.storage import replace_file
from hornbook.storage.system import open_regular, storage_errors

_HEADER: Final = np.dtype(("<i4", (256,)))
_LLMC: Final[dict[tuple[int, int], np.dtype[Any]]] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_RAW: Final = np.dtype("<u2")
_INTEGER: Final = re.compile(r"[<>|]([iu])([1248])")
FEATURES: Final = frozenset({"input_ids"})


def read_nanogpt(path: Path) -> Documents:
    """Read raw uint16 tokens as one document. Raises DataError for an odd number of bytes, or another file."""
    if is_llmc(path):
        raise DataError(f"{path}: begins with the header of llm.c; read it with `source_format='llm.c'`")
    if found := name_foreign(path):
        raise DataError(f"{path} is {found}")
    return _stream(path, _RAW, 0, _size(path))


def read_llmc(path: Path) -> Documents:
    """Read a file of llm.c as one document. Raises DataError if its header, size or a token is wrong."""
    header, size = _header(path), _size(path)
    if header is None or (int(header[0]), int(header[1])) not in _LLMC:
        known = " or ".join(f"{magic}, version {version}" for magic, version in _LLMC)
        raise DataError(
            f"{path}: not a token file of llm.c, which begins with {known}; check the path and `source_format`"
        )
    dtype = _LLMC[int(header[0]), int(header[1])]
    expected = _HEADER.itemsize + int(header[2]) * dtype.itemsize
    if size != expected:
        raise DataError(f"{path}: {size} bytes, but the header expects {expected}; the file is truncated or damaged")
    return _stream(path, dtype, _HEADER.itemsize, size)


def is_llmc(path: Path) -> bool:
    """Return whether a file begins with the magic number of llm.c's token files."""
    header = _header(path)
    return header is not None and any(int(header[0]) == magic for magic, _ in _LLMC)


def how_to_convert(path: Path) -> str | None:
    """Return how to convert a file of tokens to a store, or what a file or folder of another project is; else None."""
    if found := name_foreign(path):
        return f"{path} is {found}"
    whole = f"hornbook corpus convert {path} FOLDER --to store --tokenizer TOKENIZER --end-of-text stored"
    split = (
        f"hornbook corpus convert {path} FOLDER --to store --tokenizer TOKENIZER --end-of-text stored "
        "--split-at-end-of-text"
    )
    nanogpt = (
        f"hornbook corpus convert {path} FOLDER --to store --tokenizer TOKENIZER --end-of-text stored "
        "--split-at-end-of-text --from nanogpt"
    )
    is_records = any(path.glob("*.tfrecord*")) if path.is_dir() else path.is_file() and begins_with_record(path)
    if is_records:
        return (
            f"{path} has TFRecords; if they have documents, as input_ids, convert them with `{whole}`; BERT's "
            "instances train encoders only, such as bert-tiny"
        )
    if not path.is_file():
        return None
    if is_llmc(path):
        return f"{path} is a token file of llm.c; convert it with `{split}`"
    if path.suffix == ".npy":
        return f"{path} is an array; if it has tokens, convert it with `{whole}`"
    if path.suffix in (".pkl", ".pickle"):
        return f"{path} is a pickle; if it has lists of token ids, convert it with `{whole}`"
    if path.suffix == ".bin":
        return (
            f"{path} has no {path.stem}.idx beside it; if it has raw uint16 tokens, as written by nanoGPT, convert it "
            f"with `{nanogpt}`"
        )
    return None


def _size(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a file of tokens")
    with storage_errors("read", path):
        return path.stat().st_size


def _header(path: Path) -> NDArray[np.int32] | None:
    if not path.is_file():
        return None
    with storage_errors("read", path), open_regular(path) as file:
        start = file.read(_HEADER.itemsize)
    return np.frombuffer(start, dtype="<i4") if len(start) == _HEADER.itemsize else None


def _stream(path: Path, dtype: np.dtype[Any], offset: int, size: int) -> Documents:
    if (size - offset) % dtype.itemsize:
        raise DataError(
            f"{path}: {size} bytes are not a whole number of {dtype.name} tokens; check the path and `source_format`"
        )

    def read() -> Iterator[TokenDocument]:
        if size > offset:
            with storage_errors("read", path):
                tokens = np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=offset))
            yield TokenDocument(as_tokens(tokens, str(path)), 0, offset)

    return Documents(files=(str(path),), read=read, dtype=dtype)


def read_npy(path: Path) -> Documents:
    """Read the rows of a ``.npy``, or a one-dimensional one, as documents. Raises DataError for other content."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a .npy")
    header = read_header(path)
    descr, shape = header.descr, header.shape
    if not isinstance(descr, str) or not _INTEGER.fullmatch(descr):
        raise DataError(f"{path}: the dtype is {str(descr)[:60]!r}; expected integers, such as '<i4'")
    if len(shape) not in (1, 2) or not all(shape):  # a forged header could state any number of empty rows
        raise DataError(f"{path}: the shape is {str(shape)[:60]}; expected (sequences, length) or (tokens,)")
    array = np.atleast_2d(map_items(path, header, np.dtype(descr)))

    def read() -> Iterator[TokenDocument]:
        for number, row in enumerate(array):
            tokens = as_tokens(row, f"{path}: row {number}")
            yield TokenDocument(tokens, 0, header.offset + number * array.shape[1] * array.dtype.itemsize)

    return Documents(files=(str(path),), read=read)


def write_npy(path: Path, documents: Documents) -> None:
    """Write documents of equal length as int32[num_documents, length]. Raises UserError if their lengths differ."""
    num_rows = length = 0
    for document in documents:
        if num_rows and len(document.tokens) != length:
            raise UserError(
                f"document {num_rows} has {len(document.tokens)} tokens and those before it {length}, but the rows of "
                "a .npy have equal lengths; add `sequence_length`"
            )
        length = len(document.tokens)
        num_rows += 1
    if not length:
        raise UserError("the documents have no tokens, but a row of a .npy needs at least one; add `sequence_length`")
    dtype = TOKEN.newbyteorder("<")
    rows = (document.tokens.astype(dtype).tobytes() for document in documents)
    replace_file(path, buffered(chain((npy_header((num_rows, length), dtype),), rows)))


def read_gpt2_tfrecords(path: Path) -> Documents:
    """Read the sequences of a TFRecord file, or of a folder of them, as documents. Raises DataError."""
    files = find_tfrecords(path)

    def read() -> Iterator[TokenDocument]:
        for record, features in read_examples(files):
            where = f"{files[record.file]}: the record at byte {record.offset}"
            if set(features) != FEATURES:
                found = ", ".join(sorted(features))[:200]
                raise DataError(f"{where} has the features {found!r}; expected only input_ids")
            yield TokenDocument(as_tokens(integers(features, "input_ids", where), where), record.file, record.offset)

    return Documents(files=tuple(map(str, files)), read=read)


def write_gpt2_tfrecords(path: Path, documents: Documents, records_per_file: int | None = None) -> None:
    """Write one record per document; see ``write_records``. Raises UserError if a document is too long for a record."""

    def records() -> Iterator[bytes]:
        for number, document in enumerate(documents):
            record = encode_example({"input_ids": document.tokens.astype(np.int64)})
            if len(record) > MAX_RECORD_BYTES:
                size = f"{len(document.tokens)} tokens"
                raise UserError(f"document {number} has {size}, too many for a record; add `sequence_length`")
            yield record

    write_records(path, records(), records_per_file=records_per_file)
