"""Filtered documents in batches of 4 MB of text, each with the report of what was read and dropped for it.

    read_batches(documents, tally, filters, numbers)  ->  Batch(documents=[...], report=Report(...), candidates=...)

If a build drops duplicates, each document that could be one is a **candidate**: a row with its hash and the filter that
dropped it in this process, if any; and, for near duplicates, its signature. Which candidates are duplicates is decided
when all inputs are read (`hornbook.corpora.building.duplicates`). A copy of one of the last documents is dropped at
once, which that would also decide, since tokenizing it would be in vain.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.corpora.building.report import Report, beginning
from hornbook.text.quality.duplicates import NUM_HASHES, signature_of, text_hash
from hornbook.text.quality.policy import EXACT, Filters
from hornbook.text.reading import Document, Tally

BATCH_BYTES: Final = 4 << 20
BATCH_DOCUMENTS: Final = 1 << 15
BATCH_BYTES_READ: Final = 16 << 20
"""Limit with dropped documents included, so that filters that keep almost nothing do not delay parts and progress."""
CANDIDATE: Final = np.dtype(
    [("source", "<i4"), ("offset", "<i8"), ("low", "<u8"), ("high", "<u8"), ("dropper", "u1"), ("is_signed", "?")]
)
"""Origin, hash (0 unless exact duplicates are dropped), number of the filter that dropped it (from 1, see
``Filters.names``; 0 if kept so far), and whether it has a signature."""

_HASHES_KEPT: Final = 1 << 17


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Documents that may be duplicates, in order.

    Attributes:
        rows: ``CANDIDATE`` [n].
        signatures: of the rows that are signed, uint8 [m, 128].
        beginnings: text for an example of each row, on one line.
    """

    rows: NDArray[np.void]
    signatures: NDArray[np.uint8]
    beginnings: list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Consecutive documents.

    Attributes:
        documents: the documents that the filters keep; those that may be duplicates are rows with dropper 0.
        report: the counts of reading since the previous batch, candidates not included.
        candidates: what may be a duplicate.
        is_last: whether the inputs end with this batch.
    """

    documents: list[Document]
    report: Report
    candidates: Candidates
    is_last: bool


def read_batches(
    documents: Iterable[Document], tally: Tally, filters: Filters, source_numbers: Mapping[str, int]
) -> Generator[Batch, None, None]:
    """Filter documents and group the kept ones into batches, at least one.

    Args:
        documents: the documents.
        tally: updated by the reader of ``documents``; its counts move into the reports.
        filters: applied in order until one drops the document.
        source_numbers: maps the name of a source to its index.
    """
    sieve, remaining, is_last = _Sieve(filters, source_numbers), iter(documents), False
    while not is_last:
        batch: list[Document] = []
        num_bytes = num_bytes_read = 0
        for document in remaining:
            num_bytes_read += document.num_bytes
            if sieve.keeps(document):
                batch.append(document)
                num_bytes += document.num_bytes
            if num_bytes >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS or num_bytes_read >= BATCH_BYTES_READ:
                break
        else:
            is_last = True
        yield sieve.finish(batch, tally.take(), is_last)


class _Sieve:
    """The filters, with the report and the candidates of the current batch."""

    def __init__(self, filters: Filters, source_numbers: Mapping[str, int]) -> None:
        self._filters, self._source_numbers = filters, source_numbers
        self._codes = {name: number for number, name in enumerate(filters.names, 1)}
        self._recent: set[tuple[int, int]] = set()
        self._begin()

    def keeps(self, document: Document) -> bool:
        """Return whether no filter drops a document, and count it."""
        filters, source = self._filters, self._source_numbers[document.source]
        dropper = next((each.name for each in filters.before if not each.keeps(document)), None)
        if dropper is not None:
            self._report.add_dropped(document, source, dropper)
            return False
        if not filters.compare:
            return True
        key, signature = (0, 0), None
        if filters.exact_duplicates:
            key = text_hash(document.text)
            if key in self._recent:
                dropper = EXACT
            elif len(self._recent) >= _HASHES_KEPT:
                self._recent.clear()
            self._recent.add(key)
        if dropper is None:
            dropper = next((each.name for each in filters.after if not each.keeps(document)), None)
        if dropper is None and filters.near_duplicates is not None:
            signature = signature_of(document.text)
        if signature is not None:
            self._signatures.append(signature)
        code = 0 if dropper is None else self._codes[dropper]
        self._rows.append((source, document.offset, *key, code, signature is not None))
        self._beginnings.append(beginning(document))
        return dropper is None

    def finish(self, documents: list[Document], tally: Tally, is_last: bool) -> Batch:
        """Return the batch with everything counted since the last one."""
        self._report.tally = tally
        candidates = Candidates(
            rows=np.array(self._rows, dtype=CANDIDATE),
            signatures=np.array(self._signatures, dtype=np.uint8).reshape(-1, NUM_HASHES),
            beginnings=self._beginnings,
        )
        batch = Batch(documents=documents, report=self._report, candidates=candidates, is_last=is_last)
        self._begin()
        return batch

    def _begin(self) -> None:
        self._report = Report()
        self._rows: list[tuple[Any, ...]] = []
        self._signatures: list[NDArray[np.uint8]] = []
        self._beginnings: list[str] = []
