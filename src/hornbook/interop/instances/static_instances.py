"""Train on files of BERT instances, masked or not, in a shuffled order.

    pretrain.tfrecord (plain or remasked), a folder of them, an Arrow data set

    StaticInstances(path, seed=1).sequences(np.array([0, 7]))       an epoch holds every instance once

Such files are many times the size of the text, so records are read on demand from mapped memory, with an index of 8
bytes per record. The price: a masked instance has the same masks each time, so the file has several copies of each pair
(the duplication factor), and copies cannot be told from other instances.
"""

import hashlib
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from hornbook.arrays import Int64s
from hornbook.corpora.folders import splits_of
from hornbook.errors import DataError, UserError
from hornbook.interop.convert import INSTANCE_FORMATS, INSTANCE_SOURCES
from hornbook.interop.convert.bert_arrow import NumberedRows
from hornbook.interop.convert.bert_instances import Instance
from hornbook.interop.convert.bert_tfrecord import decode_instance
from hornbook.interop.convert.detect import detect_source
from hornbook.interop.formats.tfrecord import NumberedRecords, find_tfrecords, parse_example
from hornbook.samples.hashing import permute
from hornbook.samples.instances import Record
from hornbook.samples.sequences import TokenSequence
from hornbook.storage.system import open_regular, storage_errors

_HASHED_BYTES: Final = 1 << 16
_LOOKED_AT: Final = 64

Sizes = tuple[int, int | None]


class _Numbered(Protocol):
    """Instances by number, each with its padded number of tokens and, if stated, of predictions."""

    files: tuple[Path, ...]

    def __len__(self) -> int: ...

    def instance(self, number: int) -> tuple[Sizes, Instance]: ...

    def locate(self, number: int) -> tuple[Path, int]:
        """Return the file of an instance, and its number in the file."""


class StaticInstances:
    """A source of sequences that may already be masked; see `hornbook.samples.instances.InstanceSource`.

    Args:
        path: TFRecords of either schema, a folder of them, or an Arrow data set.
        seed: seed of the order.
        format_name: one of ``INSTANCE_FORMATS``; None to detect it from the content.

    Attributes:
        sequence_length: padded length of every instance in the file.
        max_predictions: padded number of predictions of every instance; None if the file does not state it.
        num_sequences: instances in the file.
        first_token: first token of the first instance: the [CLS] of the tokenizer that made it.
        is_masked: whether the first instances have predictions; if not, none has, and sequences have no ``positions``.

    Raises:
        UserError: the path has no instances, or an extra is not installed.
        DataError: a file is empty or damaged; most damage is found only when a record is read.
        StorageError: a file cannot be read.
    """

    def __init__(self, path: str | Path, *, seed: int, format_name: str | None = None) -> None:
        self._path, self._seed = Path(path), seed
        found = format_name or detect_source(self._path)
        if found == "bert-tfrecord-packed":
            raise UserError(
                f"{path} packs several instances in a record; train on what `hornbook corpus convert {path} "
                "new.tfrecord` makes of it"
            )
        if found not in INSTANCE_FORMATS:
            raise UserError(f"{path} has the format {found}; expected instances: {', '.join(INSTANCE_FORMATS)}")
        self._table: _Numbered = _ArrowTable(self._path) if found == "bert-arrow" else _RecordTable(self._path, found)
        self.num_sequences = len(self._table)
        if not self.num_sequences:
            raise DataError(f"{path}: the file has no instances; build it again")
        self._sizes, instance = self._table.instance(0)
        self.sequence_length, self.max_predictions = self._sizes
        if not len(instance.tokens):
            raise DataError(f"{path}: the first instance has no tokens; build the file again")
        self.first_token = int(instance.tokens[0])
        first = range(min(self.num_sequences, _LOOKED_AT))
        self.is_masked = any(self._table.instance(number)[1].positions.size for number in first)
        self.fingerprint = _fingerprint(self._table.files, seed)

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        """Return the instances of these samples (each >= 0), in their order.

        Raises:
            DataError: an instance is damaged, has another padded length than the first, or is masked unlike the first.
        """
        return [self._sequence(number) for number in self._numbers(samples).tolist()]

    def provenance(self, sample: int) -> Record:
        """Return the origin of a sample's instance."""
        (number,) = self._numbers(np.array([sample])).tolist()
        return Record(sample // self.num_sequences, *self._table.locate(number))

    def _numbers(self, samples: Int64s) -> Int64s:
        epochs, indices = np.divmod(samples, self.num_sequences)
        return permute(indices, size=self.num_sequences, seed=self._seed, epoch=epochs)

    def _sequence(self, number: int) -> TokenSequence:
        sizes, instance = self._table.instance(number)
        if sizes != self._sizes:
            raise DataError(
                f"{self._path}: instance {number} is padded to {sizes}, the first to {self._sizes}; use one size"
            )
        tokens, segments, positions, labels = (values.astype(np.int64) for values in instance[:4])
        sequence = TokenSequence(tokens, segments, int(instance.next_sentence_label), positions, labels)
        if self.is_masked:
            return sequence
        if positions.size:
            raise DataError(
                f"{self._path}: instance {number} is masked, the first ones are not; write each kind to its own file"
            )
        return sequence._replace(positions=None, labels=None)


class _RecordTable:
    def __init__(self, path: Path, format_name: str) -> None:
        self.files = find_tfrecords(path)
        self._format = format_name
        self._records = [NumberedRecords(file) for file in self.files]
        self._ends = np.cumsum([len(records) for records in self._records], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def instance(self, number: int) -> tuple[Sizes, Instance]:
        file, row = self._find(number)
        records = self._records[file]
        where = f"{self.files[file]}: the record at byte {records.offsets[row]}"
        return decode_instance(parse_example(records.record(row), where), self._format, where)

    def locate(self, number: int) -> tuple[Path, int]:
        file, row = self._find(number)
        return self.files[file], row

    def _find(self, number: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, number, side="right"))
        return file, number - (int(self._ends[file]) - len(self._records[file]))


class _ArrowTable:
    def __init__(self, path: Path) -> None:
        self._rows = NumberedRows(path)
        self.files = self._rows.files

    def __len__(self) -> int:
        return len(self._rows)

    def instance(self, number: int) -> tuple[Sizes, Instance]:
        instance, length = self._rows.row(number)
        return (length, None), instance

    def locate(self, number: int) -> tuple[Path, int]:
        return self._rows.place(number)


def holds_instances(path: str | Path) -> bool:
    """Return whether a path has instances for an encoder; False for an unknown format."""
    root = Path(path)
    if not root.exists() or (root.is_dir() and splits_of(root)):
        return False
    try:
        return detect_source(root) in INSTANCE_SOURCES
    except UserError:  # an unknown format
        return False


def open_instances(path: str | Path, *, seed: int) -> StaticInstances:
    """Open a file or folder of instances; see `hornbook.samples.instances.open_instances`."""
    return StaticInstances(path, seed=seed)


def _fingerprint(files: tuple[Path, ...], seed: int) -> str:
    """Return a hash of the seed, and of the size and both ends of each file."""
    digest = hashlib.sha256(f"{seed}".encode())
    for path in files:
        with storage_errors("read", path), open_regular(path) as file:
            size = file.seek(0, 2)
            digest.update(f":{size}:".encode())
            for offset in (0, max(0, size - _HASHED_BYTES)):
                file.seek(offset)
                digest.update(file.read(_HASHED_BYTES))
    return digest.hexdigest()
