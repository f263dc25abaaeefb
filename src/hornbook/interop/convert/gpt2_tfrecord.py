"""Reader and writer of the GPT-2 TFRecords of systems B and D, which have one feature, ``input_ids``, of int64.

    {"input_ids": [464, 3797, 3332, ...]}      one record per sequence, of equal or different lengths

Systems B and D cut a stream into sequences of 128 or 129 tokens, in files ``data_<i>.tfrecord``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from hornbook.errors import DataError, UserError
from hornbook.interop.convert.token_documents import Documents, TokenDocument, as_tokens
from hornbook.interop.formats.example import encode_example, integers
from hornbook.interop.formats.tfrecord import MAX_RECORD_BYTES, find_tfrecords, read_examples, write_records

FEATURES: Final = frozenset({"input_ids"})


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
