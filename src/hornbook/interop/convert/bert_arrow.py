"""Reader and writer of Hugging Face data sets with BERT's columns, such as ``Graphcore/wikipedia-bert-128``, in Arrow.

    input_ids            list<int32>    101 103 2938 102 ... 0 0
    attention_mask       list<int8>       1   1    1   1 ... 0 0
    token_type_ids       list<int8>       0   0    0   0 ... 0 0
    labels               list<int64>   -100 4937 -100 -100 ... -100      the masked tokens
    next_sentence_label  int64            0

    folder/data-00000-of-00001.arrow, dataset_info.json, state.json      for ``load_from_disk``

Each row is an instance. pyarrow, the extra ``arrow``, reads a batch of rows at a time, after a child process has fully
validated all batches. The format has no maximum number of predictions, so converting it to TFRecord needs an option.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Integers
from hornbook.errors import DataError
from hornbook.formats.arrow import STATE, import_pyarrow, list_dataset_files, open_batches
from hornbook.formats.child import Record, records
from hornbook.interop.convert.bert_instances import (
    Instance,
    Instances,
    check_instance,
    length_of_mask,
    padded,
    unpadded,
)
from hornbook.storage import BytesLike, FileWriter, write_file
from hornbook.storage.json_files import dump_json
from hornbook.storage.new_files import new_folder

if TYPE_CHECKING:
    import pyarrow

NOT_SCORED: Final = -100
_LISTS: Final = {"input_ids": "int32", "attention_mask": "int8", "token_type_ids": "int8", "labels": "int64"}
_LABEL: Final = "next_sentence_label"
_ROWS_PER_BATCH: Final = 1000


def read_arrow(path: Path, split: str | None = None) -> Instances:
    """Return the instances of an ``.arrow`` file, or of a split of a folder written by ``save_to_disk``.

    Raises:
        UserError: pyarrow is not installed, or there are several splits and none is chosen.
        DataError: here or during iteration, a file is missing or damaged, or rows have different lengths.
    """
    import_pyarrow()
    files = (path,) if path.is_file() else list_dataset_files(path, split)
    length = next((length for _, length in _rows(files)), 0)
    if not length:
        raise DataError(f"{path}: no rows, or a first row without tokens; expected instances")

    def read() -> Iterator[Instance]:
        for number, (instance, row_length) in enumerate(_rows(files)):
            if row_length != length:
                raise DataError(f"{path}: row {number} has {row_length} input_ids, but the first row has {length}")
            yield instance

    return Instances(files=tuple(map(str, files)), read=read, sequence_length=length)


def write_arrow(path: Path, instances: Instances) -> None:
    """Write a folder for ``datasets.load_from_disk``. Raises UserError if it exists, or pyarrow is not installed."""
    arrow = import_pyarrow()
    lists = [(name, arrow.list_(arrow.type_for_alias(kind))) for name, kind in _LISTS.items()]
    features = {name: {"feature": _value(kind), "_type": "Sequence"} for name, kind in _LISTS.items()}
    info = {"features": features | {_LABEL: _value("int64")}}
    schema = arrow.schema([*lists, (_LABEL, arrow.int64())], metadata={"huggingface": dump_json({"info": info})})
    rows = iter(instances)
    with new_folder(path) as folder:
        name = "data-00000-of-00001.arrow"
        with FileWriter(folder / name) as writer:
            sink = arrow.PythonFile(_Sink(writer), mode="w")
            with arrow.ipc.new_stream(sink, schema) as stream:
                while batch := list(islice(rows, _ROWS_PER_BATCH)):
                    stream.write_batch(_to_batch(batch, instances.sequence_length, schema))
        fingerprint = hashlib.sha256(writer.written.sha256.encode()).hexdigest()[:16]
        write_file(folder / "dataset_info.json", dump_json(info))
        # required by ``load_from_disk``
        state = dict.fromkeys(("_format_columns", "_format_type", "_split")) | {
            "_data_files": [{"filename": name}],
            "_fingerprint": fingerprint,
            "_format_kwargs": {},
            "_output_all_columns": False,
        }
        write_file(folder / STATE, dump_json(state))


class NumberedRows:
    """Random access to the rows of a data set, whose files are memory-mapped after a full check of each.

    Args:
        path: an ``.arrow`` file, or a data set with one split.

    Raises:
        UserError, DataError: see ``read_arrow``.
    """

    def __init__(self, path: Path) -> None:
        import_pyarrow()
        self.files = (path,) if path.is_file() else list_dataset_files(path, None)
        self._batches = [(file, batch) for file in self.files for batch in _batches(file)]
        self._ends = np.cumsum([batch.num_rows for _, batch in self._batches], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._batches else 0

    def row(self, number: int) -> tuple[Instance, int]:
        """Return the instance of row ``number`` (0 to len - 1), and its padded length. Raises DataError."""
        path, batch, index = self._find(number)
        one = batch.slice(index, 1)
        (row,) = zip(*(_column(one, name, path) for name in (*_LISTS, _LABEL)), strict=True)
        return _decode(row, f"{path}: row {number} of the data set"), len(row[0])

    def place(self, number: int) -> tuple[Path, int]:
        """Return the file of row ``number``, and its row number in that file."""
        path, _, _ = self._find(number)
        files = [file for file, _ in self._batches]
        first = files.index(path)
        return path, number - (int(self._ends[first]) - self._batches[first][1].num_rows)

    def _find(self, number: int) -> tuple[Path, "pyarrow.RecordBatch", int]:
        """Return the file and batch of row ``number``, and its index in the batch."""
        index = int(np.searchsorted(self._ends, number, side="right"))
        path, batch = self._batches[index]
        return path, batch, number - (int(self._ends[index]) - batch.num_rows)


def _rows(files: tuple[Path, ...]) -> Iterator[tuple[Instance, int]]:
    """Yield the instance of each row, and its padded length."""
    for path in files:
        number = 0
        for batch in _batches(path):
            for row in zip(*(_column(batch, name, path) for name in (*_LISTS, _LABEL)), strict=True):
                yield _decode(row, f"{path}: row {number}"), len(row[0])
                number += 1


def check_batches(path: str) -> Iterator[Record]:
    """Fully validate all batches of a file, in a child process; yields nothing. Raises DataError."""
    with open_batches(Path(path)) as (schema, batches):
        _check_schema(Path(path), schema)
        for batch in batches:
            batch.validate(full=True)
    yield from ()


def _batches(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    """Yield the batches of a file, after a child process has validated them, since reading damaged ones may crash."""
    for _ in records(__name__, check_batches.__name__, str(path), {"path": str(path)}, most=0):
        raise AssertionError("check_batches yields nothing")
    with open_batches(path) as (_, batches):
        yield from batches


def _check_schema(path: Path, schema: "pyarrow.Schema") -> None:
    arrow = import_pyarrow()
    names = (*_LISTS, _LABEL)
    if sorted(schema.names) != sorted(names):
        odd = ", ".join(sorted(set(schema.names) ^ set(names)))[:200]
        raise DataError(
            f"{path}: the columns are not BERT's five: {odd!r} is missing, unknown or repeated; expected "
            f"{', '.join(names)}"
        )
    for name in names:
        kind = schema.field(name).type
        is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
        item = kind.value_type if is_list else kind
        if is_list is (name == _LABEL) or not arrow.types.is_integer(item):
            expected = "integers" if name == _LABEL else "lists of integers"
            raise DataError(f"{path}: the column {name} is of type {str(kind)[:60]}; expected {expected}")


def _column(batch: "pyarrow.RecordBatch", name: str, path: Path) -> Iterator[Any]:
    """Return an iterator over the values of a column, integers or arrays of integers. Raises DataError for nulls."""
    column = batch.column(batch.schema.names.index(name))
    values = column if name == _LABEL else column.flatten()
    if column.null_count or values.null_count:
        raise DataError(f"{path}: the column {name} has nulls; expected none")
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if name == _LABEL:
        return iter(numbers.tolist())
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    return iter(np.split(numbers, (offsets[1:-1] - offsets[0])) if len(column) else [])


def _decode(row: tuple[Any, ...], where: str) -> Instance:
    """Return the instance of a row. Raises DataError if its columns are inconsistent."""
    tokens, mask, segments, labels, label = row
    if not len(tokens) == len(mask) == len(segments) == len(labels):
        raise DataError(f"{where}: the lists have different lengths; the file is damaged")
    length = length_of_mask(mask, "attention_mask", where)
    positions = np.flatnonzero(labels != NOT_SCORED)
    instance = Instance(
        tokens=unpadded(tokens, length, "input_ids", where),
        segments=unpadded(segments, length, "token_type_ids", where),
        positions=positions,
        labels=labels[positions],
        next_sentence_label=label,
    )
    return check_instance(instance, where)


def _to_batch(rows: list[Instance], length: int, schema: "pyarrow.Schema") -> "pyarrow.RecordBatch":
    arrow = import_pyarrow()
    labels = np.full((len(rows), length), NOT_SCORED, dtype=np.int64)
    for number, row in enumerate(rows):
        labels[number, row.positions] = row.labels
    columns: dict[str, list[Integers]] = {
        "input_ids": [padded(row.tokens, length) for row in rows],
        "attention_mask": [padded(np.ones_like(row.tokens), length) for row in rows],
        "token_type_ids": [padded(row.segments, length) for row in rows],
        "labels": [*labels],
    }
    offsets = arrow.array(np.arange(0, (len(rows) + 1) * length, length, dtype=np.int32))
    lists = [
        arrow.ListArray.from_arrays(offsets, arrow.array(np.concatenate(columns[name]).astype(kind)))
        for name, kind in _LISTS.items()
    ]
    label = arrow.array([row.next_sentence_label for row in rows], type=arrow.int64())
    return arrow.record_batch([*lists, label], schema=schema)


def _value(kind: str) -> dict[str, str]:
    return {"dtype": kind, "_type": "Value"}


class _Sink:
    """A file-like object for pyarrow that writes through `hornbook.storage`."""

    closed = False

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer

    def write(self, data: BytesLike) -> int:
        self._writer.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def close(self) -> None:
        """Do nothing: the writer is closed by the code that opened it."""
