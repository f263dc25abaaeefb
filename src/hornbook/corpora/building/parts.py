"""The parts of a slice of the inputs: some tens of megabytes of text each, finished one by one.

    slices/000003/000000-train.bin .idx .npy, 000000-validation.bin ...       then its record, 000000.json
    slices/000003/000000-candidates.npy, -signatures.npy, -beginnings.txt     what may be a duplicate
    slices/000003/000001-train.bin ...                                        000001.json: "is_last": true

Each part is a Megatron data set. Its record, written last, has the position in the inputs, from which a killed build
resumes, and the sizes of the files, which reveal an incomplete one. A slice whose last part is there is finished.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hornbook.arrays import Int64s
from hornbook.corpora.building.batches import CANDIDATE, Candidates
from hornbook.corpora.building.report import Report, SplitCounts
from hornbook.corpora.building.token_pipeline import TokenBatch
from hornbook.corpora.folders import DOCUMENT_ROW
from hornbook.corpora.megatron import IndexedWriter
from hornbook.errors import DataError
from hornbook.formats.npy import map_array, npy_bytes
from hornbook.storage import remove_file, replace_file, write_file
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.text.quality.duplicates import NUM_HASHES
from hornbook.text.reading import Position

BATCHES_PER_PART: Final = 16
NUMBERED_ROW: Final = np.dtype([*DOCUMENT_ROW.descr, ("number", "<i8")])
"""A row of ``documents.npy``, and the index of the document among the part's candidates with dropper 0, if any."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The record of a finished part.

    Attributes:
        prefix: the path that the names of its files begin with.
        report: what was read and dropped for it, candidates not included; its position is after the last document.
        splits: its counts of each split.
        files: the size of each of its files in bytes, by name.
        candidates: number of candidates.
        signatures: number of signatures.
        is_last: whether its slice ends with it.
    """

    prefix: Path
    report: Report
    splits: dict[str, SplitCounts]
    files: dict[str, int]
    candidates: int
    signatures: int
    is_last: bool

    @classmethod
    def read(cls, prefix: Path) -> "Part | None":
        """Return the part with this prefix; None if it is not finished, or a file of it is missing or truncated."""
        path = prefix.with_name(f"{prefix.name}.json")
        try:
            values = parse_json(read_bytes(path, "the record of a part"), str(path))
            part = cls(
                prefix=prefix,
                report=Report.from_json(values["report"]),
                splits={split: SplitCounts(**counts) for split, counts in values["splits"].items()},
                files=dict(values["files"]),
                candidates=int(values["candidates"]),
                signatures=int(values["signatures"]),
                is_last=bool(values["is_last"]),
            )
        except (DataError, KeyError, TypeError, ValueError, AttributeError):
            return None
        paths = {prefix.with_name(name): size for name, size in part.files.items()}
        is_whole = all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
        return part if is_whole else None

    def store(self, split: str) -> Path:
        """Return the prefix of the ``.bin`` and ``.idx`` of a split."""
        return self.prefix.with_name(f"{self.prefix.name}-{split}")

    def rows(self, split: str) -> NDArray[np.void]:
        """Map the origins of a split's documents, ``NUMBERED_ROW`` [num_documents]."""
        return _map_npy(self.prefix.with_name(f"{self.prefix.name}-{split}.npy"), NUMBERED_ROW)

    def candidate_rows(self) -> NDArray[np.void]:
        """Map the candidates, ``CANDIDATE`` [num_candidates]."""
        return _map_npy(self.prefix.with_name(f"{self.prefix.name}-candidates.npy"), CANDIDATE)

    def signature_rows(self) -> NDArray[np.uint8]:
        """Map the signatures, uint8 [num_signatures, 128]."""
        path = self.prefix.with_name(f"{self.prefix.name}-signatures.npy")
        return _map_npy(path, np.dtype(np.uint8)).reshape(-1, NUM_HASHES)

    def beginning(self, candidate: int) -> str:
        """Return the beginning of a candidate's text, for an example."""
        path = self.prefix.with_name(f"{self.prefix.name}-beginnings.txt")
        with path.open(encoding="utf-8", newline="\n") as file:
            return next(islice(file, candidate, None)).removesuffix("\n")


class Parts:
    """The parts of a slice in an existing folder, including those of an earlier process.

    Attributes:
        finished: the finished parts, in order.
    """

    def __init__(self, folder: Path) -> None:
        """Load the finished parts whose files are complete."""
        self._folder = folder
        self.finished: list[Part] = []
        for number in count():
            part = Part.read(self._prefix(number))
            if part is None:
                break
            self.finished.append(part)

    @property
    def is_complete(self) -> bool:
        """Whether the slice is finished."""
        return bool(self.finished) and self.finished[-1].is_last

    @property
    def position(self) -> Position | None:
        """The position after the last finished part; None without parts."""
        return self.finished[-1].report.tally.position if self.finished else None

    def write(
        self,
        batches: Iterator[TokenBatch],
        splits: Sequence[str],
        dtype: DTypeLike,
        after_batch: Callable[[dict[str, SplitCounts]], None],
    ) -> None:
        """Write batches, up to the slice's last one, into further parts; ``after_batch`` gets the counts of each."""
        for path in self._folder.glob("*.json"):  # records of parts after a damaged one
            if path.stem.isdigit() and int(path.stem) >= len(self.finished):
                remove_file(path)
        while not self.is_complete:
            self.finished.append(_write_part(self._prefix(len(self.finished)), batches, splits, dtype, after_batch))

    def _prefix(self, number: int) -> Path:
        return self._folder / f"{number:06d}"


def _write_part(
    prefix: Path,
    batches: Iterator[TokenBatch],
    splits: Sequence[str],
    dtype: DTypeLike,
    after_batch: Callable[[dict[str, SplitCounts]], None],
) -> Part:
    stores = {split: prefix.with_name(f"{prefix.name}-{split}") for split in splits}
    counts = dict.fromkeys(splits, SplitCounts())
    rows: dict[str, list[NDArray[np.void]]] = {split: [] for split in splits}
    candidates: list[Candidates] = []
    report, num_kept = Report(), 0
    with ExitStack() as stack:
        writers = {split: stack.enter_context(IndexedWriter(store, dtype)) for split, store in stores.items()}
        for batch in islice(batches, BATCHES_PER_PART):
            some = dict.fromkeys(splits, SplitCounts())
            for split, writer in writers.items():
                tokens = batch.splits[split]
                writer.add_documents(tokens.tokens, tokens.sizes, tokens.sequences)
                rows[split].append(_numbered(tokens.rows, tokens.numbers + num_kept))
                num_bytes = int(tokens.rows["num_bytes"].sum())
                some[split] = SplitCounts(documents=len(tokens.rows), tokens=len(tokens.tokens), num_bytes=num_bytes)
            counts = {split: counts[split] + some[split] for split in splits}
            num_kept += int((batch.candidates.rows["dropper"] == 0).sum())
            candidates.append(batch.candidates)
            report += batch.report
            after_batch(some)
            if batch.is_last:
                break
    files: dict[str, bytes | Iterator[bytes]] = {
        f"{store.name}.npy": npy_bytes(np.concatenate(rows[split])) for split, store in stores.items()
    }
    compared = np.concatenate([each.rows for each in candidates])
    signatures = np.concatenate([each.signatures for each in candidates])
    if len(compared):
        files[f"{prefix.name}-candidates.npy"] = npy_bytes(compared)
        files[f"{prefix.name}-beginnings.txt"] = (
            f"{line}\n".encode() for each in candidates for line in each.beginnings
        )
    if len(signatures):
        files[f"{prefix.name}-signatures.npy"] = npy_bytes(signatures.reshape(-1))
    sizes = {name: write_file(prefix.with_name(name), data).size for name, data in files.items()}
    for path in (store.with_name(f"{store.name}{suffix}") for store in stores.values() for suffix in (".bin", ".idx")):
        sizes[path.name] = path.stat().st_size
    part = Part(
        prefix=prefix,
        report=report,
        splits=counts,
        files=sizes,
        candidates=len(compared),
        signatures=len(signatures),
        is_last=batch.is_last,
    )
    record = asdict(part) | {"report": report.to_json()}
    del record["prefix"]
    replace_file(prefix.with_name(f"{prefix.name}.json"), dump_json(record))
    return part


def _numbered(rows: NDArray[np.void], numbers: Int64s) -> NDArray[np.void]:
    found = np.empty(len(rows), dtype=NUMBERED_ROW)
    for name in DOCUMENT_ROW.names or ():
        found[name] = rows[name]
    found["number"] = numbers
    return found


def _map_npy(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        return map_array(path, dtype)
    except DataError as error:
        raise DataError(
            f"{path}: the array of a part is damaged; remove {path.parent.parent.parent} and build again"
        ) from error
