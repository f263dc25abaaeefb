"""Joining the parts of all slices into a corpus: duplicates are found and left out, counts are added up.

    parts of slice 0, 1, 2, ...   ->   train/tokens.bin, .idx, documents.npy      in order, copied or selected

Memory holds the index of one part; the price of parts is that tokens are written twice.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Bools, Integers
from hornbook.corpora.building.duplicates import find_droppers
from hornbook.corpora.building.parts import Part
from hornbook.corpora.building.report import EXAMPLES_PER_FILTER, Example, Report, SplitCounts
from hornbook.corpora.folders import DOCUMENT_ROW
from hornbook.corpora.megatron import JoinedPart, join_indexed
from hornbook.formats.npy import npy_header
from hornbook.storage import BytesLike, Written, write_file
from hornbook.text.quality.policy import Filters
from hornbook.wording import as_text


@dataclass(frozen=True, kw_only=True)
class Joined:
    """All parts of a build and what is left of them.

    Attributes:
        parts: the parts, in order.
        report: the counts of the corpus, duplicates included.
        splits: its counts of each split.
        kept: number of documents kept, by index of the source.
        droppers: see `hornbook.corpora.building.duplicates.find_droppers`; None if documents are not compared.
    """

    parts: Sequence[Part]
    report: Report
    splits: dict[str, SplitCounts]
    kept: Counter[int]
    droppers: NDArray[np.uint8] | None

    def write_split(self, split: str, dtype: np.dtype[Any], target: Path) -> dict[str, Written]:
        """Write ``tokens.bin``, ``tokens.idx`` and ``documents.npy`` into an existing folder.

        Returns:
            Size and hash of each file, by name.

        Raises:
            DataError: a part is damaged.
        """

        def stores() -> Iterator[JoinedPart]:
            return (JoinedPart(part.store(split), kept) for part, kept in self.selections(split))

        tokens, index = join_indexed(stores, dtype, target / "tokens")

        def rows() -> Iterator[BytesLike]:
            yield npy_header((self.splits[split].documents,), DOCUMENT_ROW)
            for part, kept in self.selections(split):
                found = part.rows(split) if kept is None else part.rows(split)[kept]
                yield found[list(DOCUMENT_ROW.names or ())].astype(DOCUMENT_ROW).tobytes()  # without their numbers

        documents = write_file(target / "documents.npy", rows())
        return {"tokens.bin": tokens, "tokens.idx": index, "documents.npy": documents}

    def barren_sources(self, sources: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the sources without documents or faults, and those whose documents were all dropped."""
        lost, faulty = self.report.lost, self.report.tally.faulty
        barren = [number for number in range(len(sources)) if not self.kept[number]]
        return (
            [sources[number] for number in barren if not lost[number] and number not in faulty],
            [sources[number] for number in barren if lost[number]],
        )

    def selections(self, split: str) -> Iterator[tuple[Part, Bools | None]]:
        """Yield each part with the documents of the split to keep, bool[num_documents], or None for all of them."""
        return _selections(self.parts, split, self.droppers)


def join_parts(
    parts: Sequence[Part], splits: Sequence[str], filters: Filters, sources: Sequence[str], scratch: Path
) -> Joined:
    """Find the duplicates in parts and add up their counts.

    Args:
        parts: the parts of all slices, in order.
        splits: the names of the splits.
        filters: the filters of the build.
        sources: the names of the sources.
        scratch: a folder for files without names.

    Raises:
        DataError: a part is damaged.
    """
    droppers = find_droppers(parts, filters, scratch) if filters.compare else None
    report = sum((part.report for part in parts), Report())
    if droppers is not None:
        report = _report_of_candidates(parts, droppers, filters.names, sources) + report
    report.dropped = Counter({name: report.dropped[name] for name in filters.names})
    report.examples = {name: report.examples[name] for name in filters.names if name in report.examples}
    counts, kept_of = dict.fromkeys(splits, SplitCounts()), Counter[int]()
    for split in splits:
        for part, kept in _selections(parts, split, droppers):
            rows = part.rows(split)
            some = part.splits[split]
            if kept is not None:
                rows = rows[kept]
                lengths = np.diff(JoinedPart(part.store(split), kept).open().document_starts)
                some = SplitCounts(
                    documents=len(rows), tokens=int(lengths[kept].sum()), num_bytes=int(rows["num_bytes"].sum())
                )
            counts[split] += some
            kept_of.update(_count(rows["source"]))
    return Joined(parts=parts, report=report, splits=counts, kept=kept_of, droppers=droppers)


def _selections(
    parts: Sequence[Part], split: str, droppers: NDArray[np.uint8] | None
) -> Iterator[tuple[Part, Bools | None]]:
    start = 0
    for part in parts:
        kept = None
        if droppers is not None and part.candidates:
            rows = part.candidate_rows()
            is_kept = droppers[start : start + part.candidates][rows["dropper"] == 0] == 0
            if not is_kept.all():
                kept = is_kept[part.rows(split)["number"]]
            start += part.candidates
        yield part, kept


def _report_of_candidates(
    parts: Sequence[Part], droppers: NDArray[np.uint8], names: Sequence[str], sources: Sequence[str]
) -> Report:
    """Return the report of the candidates that were dropped."""
    found, start = Report(), 0
    for part in parts:
        if not part.candidates:
            continue
        rows, codes = part.candidate_rows(), droppers[start : start + part.candidates]
        start += part.candidates
        for number in np.flatnonzero(np.bincount(codes, minlength=len(names) + 1)[1:]).tolist():
            chosen = np.flatnonzero(codes == number + 1)
            found.dropped[names[number]] += len(chosen)
            found.lost.update(_count(rows["source"][chosen]))
            examples = found.examples.setdefault(names[number], [])
            for candidate in chosen[: EXAMPLES_PER_FILTER - len(examples)].tolist():
                row = rows[candidate]
                source = as_text(sources[row["source"]])
                examples.append(Example(source=source, offset=int(row["offset"]), text=part.beginning(candidate)))
    return found


def _count(sources: Integers) -> dict[int, int]:
    numbers, times = np.unique(sources, return_counts=True)
    return dict(zip(numbers.tolist(), times.tolist(), strict=True))
