"""The parts of an unfinished corpus: some tens of megabytes of text each, finished one by one and joined at the end.

    parts/000000-train.bin .idx .npy, 000000-validation.bin ..., 000000-memory-0.npy      then its record, 000000.json
    parts/000001-train.bin ...
    parts/end.json                                                                        all inputs were read

Each part is a Megatron data set. Its record, written last, has the position in the inputs, from which a killed build
resumes, and the sizes of the files, which reveal an incomplete one. Joining copies bytes and shifts indices, so memory
holds only some batches; the price is that tokens are written twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hornbook.arrays import Hashes
from hornbook.corpora.building.token_pipeline import Batch, Reading, Tokens
from hornbook.corpora.megatron import IndexedWriter, join_indexed
from hornbook.corpora.store_manifest import DOCUMENT_ROW
from hornbook.errors import DataError
from hornbook.formats.npy import map_array, npy_bytes, npy_header
from hornbook.storage import BytesLike, Written, remove_file, replace_file, write_file
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.text.quality.filters import Filter

BATCHES_PER_PART: Final = 16
_END: Final = "end.json"


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """The counts of a split: documents, tokens (stored end-of-text tokens included), bytes of text in UTF-8."""

    documents: int = 0
    tokens: int = 0
    num_bytes: int = 0

    def __add__(self, other: "SplitCounts") -> "SplitCounts":
        """Return the sum of each field."""
        return SplitCounts(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            num_bytes=self.num_bytes + other.num_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Part:
    """The record of a finished part.

    Attributes:
        reading: the state of reading after its last document; ``lost`` counts from the end of the previous part.
        splits: its counts of each split.
        files: the size of each of its files in bytes.
    """

    reading: Reading
    splits: dict[str, SplitCounts]
    files: dict[str, int]


class Parts:
    """The parts in an existing folder, including those of an earlier process.

    Attributes:
        finished: the records of the finished parts.
        end: the state of reading after all inputs; None until then.
    """

    def __init__(self, folder: Path, splits: tuple[str, ...], dtype: DTypeLike) -> None:
        """Load the records of the finished parts whose files are complete, and remove other records."""
        self._folder, self._splits, self._dtype = folder, splits, dtype
        self.finished: list[Part] = []
        for number in count():
            try:
                record = _read_record(folder / f"{number:06d}.json")
                part = Part(
                    reading=Reading.from_json(record["reading"]),
                    splits={split: SplitCounts(**counts) for split, counts in record["splits"].items()},
                    files=dict(record["files"]),
                )
            except (KeyError, TypeError, ValueError, AttributeError):  # not finished, or damaged
                break
            paths = {folder / name: size for name, size in part.files.items()}
            if not all(path.is_file() and path.stat().st_size == size for path, size in paths.items()):
                break
            self.finished.append(part)
        self.end: Reading | None = None
        try:
            end = _read_record(folder / _END)
            if end["parts"] == number:
                self.end = Reading.from_json(end["reading"])
        except (KeyError, TypeError, ValueError):
            pass  # the inputs were not fully read
        stale = [path for path in folder.glob("*.json") if path.stem.isdigit() and int(path.stem) >= number]
        for path in (*[folder / _END] * (self.end is None), *stale):
            remove_file(path)

    @property
    def reading(self) -> Reading:
        """A copy of the state of reading after the last part, with ``lost`` empty."""
        if not self.finished:
            return Reading()
        return replace(self.finished[-1].reading.copy(), lost=Counter())

    def counts(self) -> dict[str, SplitCounts]:
        """Return the counts of each split over all parts."""
        return {split: sum((part.splits[split] for part in self.finished), SplitCounts()) for split in self._splits}

    def restore_filters(self, filters: Sequence[Filter]) -> None:
        """Restore the memory that filters had after the last part. Raises DataError if a part is damaged."""
        for number, part in enumerate(self.finished):
            for index, each in enumerate(filters):
                name = f"{number:06d}-memory-{index}.npy"
                if name in part.files:
                    each.remember(_map_npy(self._folder / name, np.dtype(np.uint64)))

    def write(
        self,
        batches: Iterator[tuple[Batch, dict[str, Tokens]]],
        after_batch: Callable[[dict[str, SplitCounts]], None],
    ) -> None:
        """Write batches into further parts; call ``after_batch`` with the counts of all parts after each batch."""
        while (first := next(batches, None)) is not None:
            self._write_part(chain((first,), islice(batches, BATCHES_PER_PART - 1)), after_batch)

    def _write_part(
        self,
        batches: Iterator[tuple[Batch, dict[str, Tokens]]],
        after_batch: Callable[[dict[str, SplitCounts]], None],
    ) -> None:
        number, before = len(self.finished), self.counts()
        prefixes = {split: self._prefix(number, split) for split in self._splits}
        splits = dict.fromkeys(self._splits, SplitCounts())
        rows: dict[str, list[NDArray[np.void]]] = {split: [] for split in self._splits}
        memory: list[list[Hashes]] = []
        lost = Counter[int]()
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(IndexedWriter(prefix, self._dtype)) for split, prefix in prefixes.items()
            }
            for batch, tokens in batches:
                for split, writer in writers.items():
                    some = tokens[split]
                    writer.add_documents(some.tokens, some.sizes, some.sequences)
                    rows[split].append(some.rows)
                    num_bytes = int(some.rows["num_bytes"].sum())
                    splits[split] += SplitCounts(documents=len(some.rows), tokens=len(some.tokens), num_bytes=num_bytes)
                memory.append(batch.memory)
                lost += batch.reading.lost
                after_batch({split: before[split] + splits[split] for split in splits})
        arrays = {f"{prefixes[split].name}.npy": np.concatenate(some) for split, some in rows.items()}
        for index, learned in enumerate(zip(*memory, strict=True)):  # for each filter, its memory of each batch
            if sum(map(len, learned)):
                arrays[f"{number:06d}-memory-{index}.npy"] = np.concatenate(learned)
        for name, array in arrays.items():
            write_file(self._folder / name, npy_bytes(array))
        names = [f"{prefix.name}{suffix}" for prefix in prefixes.values() for suffix in (".bin", ".idx")]
        part = Part(
            reading=replace(batch.reading, lost=lost),
            splits=splits,
            files={name: (self._folder / name).stat().st_size for name in (*names, *arrays)},
        )
        record = asdict(part) | {"reading": part.reading.to_json()}
        replace_file(self._folder / f"{number:06d}.json", dump_json(record))
        self.finished.append(part)

    def finish(self, reading: Reading) -> None:
        """Record that all inputs were read."""
        record = {"parts": len(self.finished), "reading": reading.to_json()}
        replace_file(self._folder / _END, dump_json(record))
        self.end = reading

    def join(self, split: str, target: Path) -> dict[str, Written]:
        """Join the parts of a split into ``tokens.bin``, ``tokens.idx`` and ``documents.npy`` in an existing folder.

        Returns:
            Size and hash of each file, by name.

        Raises:
            DataError: a part is damaged.
        """
        prefixes = [self._prefix(number, split) for number in range(len(self.finished))]
        tokens, index = join_indexed(prefixes, target / "tokens")

        def rows() -> Iterator[BytesLike]:
            yield npy_header((self.counts()[split].documents,), DOCUMENT_ROW)
            for prefix in prefixes:
                yield _map_npy(prefix.with_suffix(".npy"), DOCUMENT_ROW).tobytes()

        documents = write_file(target / "documents.npy", rows())
        return {"tokens.bin": tokens, "tokens.idx": index, "documents.npy": documents}

    def barren_sources(self, sources: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the sources without documents or faults, and those whose documents were all dropped."""
        kept, lost = np.zeros(len(sources), dtype=np.int64), Counter[int]()
        for number in range(len(self.finished)):
            for split in self._splits:
                rows = _map_npy(self._prefix(number, split).with_suffix(".npy"), DOCUMENT_ROW)
                np.add.at(kept, rows["source"], 1)
        readings = [part.reading for part in self.finished] + ([self.end] if self.end else [])
        for reading in readings:
            lost += reading.lost
        faulty = readings[-1].tally.faulty if readings else set()
        barren = [number for number in range(len(sources)) if not kept[number]]
        return (
            [sources[number] for number in barren if not lost[number] and number not in faulty],
            [sources[number] for number in barren if lost[number]],
        )

    def _prefix(self, number: int, split: str) -> Path:
        return self._folder / f"{number:06d}-{split}"


def _read_record(path: Path) -> Any:
    """Return the content of a record; None if it is missing or unreadable."""
    try:
        return parse_json(read_bytes(path, "the record of a part"), str(path)) if path.is_file() else None
    except DataError:
        return None


def _map_npy(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        return map_array(path, dtype)
    except DataError as error:
        raise DataError(
            f"{path}: the array of a part is damaged; remove {path.parent.parent} and build again"
        ) from error
