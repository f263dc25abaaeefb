"""Parts of a corpus that is being built: some tens of megabytes of text each, finished one by one, joined at the end.

    parts/000000-train.bin .idx .npy, 000000-validation.bin ..., 000000-memory-0.npy      then 000000.json, its record
    parts/000001-train.bin ...
    parts/end.json                                                                        there are no more

A part is by itself a Megatron data set; its record, written last, says how far the inputs were read, so that a build
that was killed goes on behind the last record, and what the files' sizes are, so that a torn one is seen. Joining
copies bytes and adds up indices. So memory holds some batches, whatever the size of the corpus. The price: the tokens
are written twice.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hornbook.arrays import Hashes
from hornbook.corpus.megatron import IndexedWriter, join_indexed
from hornbook.formats.npy import map_array, npy_bytes, npy_header
from hornbook.corpus.build.token_pipeline import Reading, TokenBatch, Tokens
from hornbook.corpus.document_rows import DOCUMENT_ROW
from hornbook.errors import DataError
from hornbook.storage import BytesLike, Written, remove_file, replace_file, write_file
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.text.quality.filter import Filter
from hornbook.text.quality.suspicion import SourceCounts

BATCHES_PER_PART: Final = 16
_END: Final = "end.json"


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """What a split holds: documents, tokens (stored end-of-text tokens included), bytes of text in UTF-8."""

    documents: int = 0
    tokens: int = 0
    num_bytes: int = 0

    def __add__(self, other: "SplitCounts") -> "SplitCounts":
        """Both together."""
        return SplitCounts(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            num_bytes=self.num_bytes + other.num_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Part:
    """The record of a finished part.

    Attributes:
        reading: how far the inputs were read after its last document; what was lost is that since the part before it.
        splits: what it has of each split.
        files: the size of each of its files.
    """

    reading: Reading
    splits: dict[str, SplitCounts]
    files: dict[str, int]


class Parts:
    """The parts in a folder that exists, those of an earlier process included.

    Attributes:
        finished: their records.
        end: how far the inputs were read, once all of them were.
    """

    def __init__(self, folder: Path, splits: tuple[str, ...], dtype: DTypeLike) -> None:
        """Take up the finished parts that are whole; records of others are removed.

        Raises:
            StorageError: the folder cannot be read or changed.
        """
        self._folder, self._splits, self._dtype = folder, splits, dtype
        self.finished: list[Part] = []
        for number in count():
            part = _read_part(folder, number)
            if part is None:
                break
            self.finished.append(part)
        self.end = _read_end(folder / _END, number)
        stale = [path for path in folder.glob("*.json") if path.stem.isdigit() and int(path.stem) >= number]
        for path in (*[folder / _END] * (self.end is None), *stale):
            remove_file(path)

    @property
    def reading(self) -> Reading:
        """How far the inputs were read when the last part ended; a copy, of which nothing is lost yet."""
        if not self.finished:
            return Reading()
        return replace(self.finished[-1].reading.copy(), lost=Counter(), lost_bytes=Counter())

    def counts(self) -> dict[str, SplitCounts]:
        """What all parts have of each split."""
        return {split: sum((part.splits[split] for part in self.finished), SplitCounts()) for split in self._splits}

    def remind(self, filters: Sequence[Filter]) -> None:
        """Give filters back what they learned while the parts were made.

        Raises:
            DataError: a part is damaged.
            StorageError: it cannot be read.
        """
        for number, part in enumerate(self.finished):
            for index, each in enumerate(filters):
                name = _memory_name(number, index)
                if name in part.files:
                    each.remember(_map_npy(self._folder / name, np.dtype(np.uint64)))

    def write(
        self, batches: Generator[TokenBatch, None, None], after_batch: Callable[[dict[str, SplitCounts]], None]
    ) -> None:
        """Write batches into further parts; ``after_batch`` is told the counts of all parts after each.

        Raises:
            StorageError: a part cannot be written; the finished ones are none the worse.
        """
        while True:
            some = islice(batches, BATCHES_PER_PART)
            if (first := next(some, None)) is None:
                return
            self._write_part(chain((first,), some), after_batch)

    def _write_part(self, batches: Iterator[TokenBatch], after_batch: Callable[[dict[str, SplitCounts]], None]) -> None:
        number, counts = len(self.finished), self.counts()
        memory: list[list[Hashes]] = []
        lost, lost_bytes = Counter[int](), Counter[int]()
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(_SplitWriter(self._prefix(number, split), self._dtype))
                for split in self._splits
            }
            for batch in batches:
                for split, writer in writers.items():
                    writer.add(batch.splits[split])
                memory.append(batch.memory)
                lost += batch.reading.lost
                lost_bytes += batch.reading.lost_bytes
                after_batch({split: counts[split] + writer.counts for split, writer in writers.items()})
        files = [file for writer in writers.values() for file in writer.files]
        files += self._write_memory(number, memory)
        part = Part(
            reading=replace(batch.reading, lost=lost, lost_bytes=lost_bytes),
            splits={split: writer.counts for split, writer in writers.items()},
            files={path.name: path.stat().st_size for path in files},
        )
        record = asdict(part) | {"reading": part.reading.to_json()}
        replace_file(self._folder / f"{number:06d}.json", dump_json(record))
        self.finished.append(part)

    def _write_memory(self, number: int, memory: list[list[Hashes]]) -> Iterator[Path]:
        for index, learned in enumerate(zip(*memory, strict=True)):
            if sum(map(len, learned)):
                path = self._folder / _memory_name(number, index)
                write_file(path, npy_bytes(np.concatenate(learned)))
                yield path

    def finish(self, reading: Reading) -> None:
        """Note that the inputs were read to their end.

        Raises:
            StorageError: it cannot be written.
        """
        record = {"parts": len(self.finished), "reading": reading.to_json()}
        replace_file(self._folder / _END, dump_json(record))
        self.end = reading

    def join(self, split: str, target: Path) -> dict[str, Written]:
        """Make ``tokens.bin``, ``tokens.idx`` and ``documents.npy`` of a split's parts in an existing folder.

        Returns:
            Size and hash of each of them.

        Raises:
            DataError: a part is damaged.
            StorageError: a file cannot be read or written.
        """
        prefixes = [self._prefix(number, split) for number in range(len(self.finished))]
        tokens, index = join_indexed(prefixes, target / "tokens")
        documents = write_file(target / "documents.npy", self._joined_rows(split, prefixes))
        return {"tokens.bin": tokens, "tokens.idx": index, "documents.npy": documents}

    def _joined_rows(self, split: str, prefixes: list[Path]) -> Iterator[BytesLike]:
        yield npy_header((self.counts()[split].documents,), DOCUMENT_ROW)
        for prefix in prefixes:
            yield _map_npy(prefix.with_suffix(".npy"), DOCUMENT_ROW).tobytes()

    def source_counts(self, sources: Sequence[str]) -> list[SourceCounts]:
        """What became of each source; raises as ``join``."""
        kept, num_bytes, lost, lost_bytes = (np.zeros(len(sources), dtype=np.int64) for _ in range(4))
        for number in range(len(self.finished)):
            for split in self._splits:
                rows = _map_npy(self._prefix(number, split).with_suffix(".npy"), DOCUMENT_ROW)
                np.add.at(kept, rows["source"], 1)
                np.add.at(num_bytes, rows["source"], rows["num_bytes"])
        readings = [part.reading for part in self.finished] + ([self.end] if self.end else [])
        for reading in readings:
            for total, some in ((lost, reading.lost), (lost_bytes, reading.lost_bytes)):
                for number, amount in some.items():
                    total[number] += amount
        columns = (kept + lost).tolist(), kept.tolist(), (num_bytes + lost_bytes).tolist()
        faulty = readings[-1].tally.faulty if readings else set()
        return [
            SourceCounts(source=name, documents=read, kept=stayed, num_bytes=size, has_faults=number in faulty)
            for number, (name, read, stayed, size) in enumerate(zip(sources, *columns, strict=True))
        ]

    def _prefix(self, number: int, split: str) -> Path:
        return self._folder / f"{number:06d}-{split}"


class _SplitWriter:
    """One split of one part: ``prefix.bin``, ``prefix.idx``, and ``prefix.npy`` with a row a document."""

    def __init__(self, prefix: Path, dtype: DTypeLike) -> None:
        self.files = [prefix.with_suffix(suffix) for suffix in (".bin", ".idx", ".npy")]
        self.counts = SplitCounts()
        self._indexed = IndexedWriter(prefix, dtype)
        self._rows: list[NDArray[np.void]] = []

    def add(self, some: Tokens) -> None:
        self._indexed.add_documents(some.tokens, some.sizes, some.sequences)
        self._rows.append(some.rows)
        self.counts += SplitCounts(
            documents=len(some.rows), tokens=len(some.tokens), num_bytes=int(some.rows["num_bytes"].sum())
        )

    def __enter__(self) -> Self:
        self._indexed.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._indexed.__exit__(kind, error, at)
        if error is None:
            write_file(self.files[-1], npy_bytes(np.concatenate(self._rows)))


def _memory_name(number: int, index: int) -> str:
    return f"{number:06d}-memory-{index}.npy"


def _read_record(path: Path) -> Any:
    """What a record says; None where there is none, or none that can be read."""
    if not path.is_file():
        return None
    try:
        return parse_json(read_bytes(path, "the record of a part"), str(path))
    except DataError:
        return None


def _read_part(folder: Path, number: int) -> Part | None:
    """The record of a part whose files are all there; None where it was not finished, or was damaged since."""
    record = _read_record(folder / f"{number:06d}.json")
    try:
        part = Part(
            reading=Reading.from_json(record["reading"]),
            splits={split: SplitCounts(**counts) for split, counts in record["splits"].items()},
            files=dict(record["files"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    paths = {folder / name: size for name, size in part.files.items()}
    return part if all(path.is_file() and path.stat().st_size == size for path, size in paths.items()) else None


def _read_end(path: Path, num_parts: int) -> Reading | None:
    """How far the inputs were read in the end; None where that is not known, or was with other parts."""
    record = _read_record(path)
    try:
        return Reading.from_json(record["reading"]) if record["parts"] == num_parts else None
    except (KeyError, TypeError, ValueError):
        return None


def _map_npy(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that a part has.

    Raises:
        DataError: it is damaged.
        StorageError: it cannot be read.
    """
    try:
        return map_array(path, dtype)
    except DataError as error:
        raise DataError(
            f"{path}: the array of a part is damaged; remove {path.parent.parent}, and build again"
        ) from error
