"""Hugging Face data sets with BERT's columns, as ``Graphcore/wikipedia-bert-128`` has them: Arrow, a row an instance.

    input_ids            list<int32>    101 103 2938 102 ... 0 0
    attention_mask       list<int8>       1   1    1   1 ... 0 0
    token_type_ids       list<int8>       0   0    0   0 ... 0 0
    labels               list<int64>   -100 4937 -100 -100 ... -100      what is under the masks
    next_sentence_label  int64            0

    folder/data-00000-of-00001.arrow, dataset_info.json, state.json      what ``load_from_disk`` takes

Read with pyarrow, the extra ``arrow``, a batch of rows at a time; every batch is checked in full before a row is taken
from it. The price: the format does not say how many predictions were padded to, so a TFRecord of it needs to be told.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.data.formats.files import new_folder
from hornbook.data.formats.instances import (
    Instance,
    Instances,
    Integers,
    check_instance,
    length_of_mask,
    padded,
    unpadded,
)
from hornbook.errors import DataError, UserError
from hornbook.storage import BytesLike, FileWriter, dump_json, read_json, write_file
from hornbook.storage.system import translated

if TYPE_CHECKING:
    import pyarrow

NOT_SCORED: Final = -100
STATE: Final = "state.json"
SPLITS: Final = "dataset_dict.json"
_LISTS: Final = {"input_ids": "int32", "attention_mask": "int8", "token_type_ids": "int8", "labels": "int64"}
_LABEL: Final = "next_sentence_label"
_HEAD: Final = struct.Struct("<Ii")
_CONTINUES: Final = 0xFFFFFFFF
_END_OF_STREAM: Final = _HEAD.pack(_CONTINUES, 0)
_IS_BATCH: Final = 3
_MAX_METADATA_BYTES: Final = 16 << 20
_ROWS_PER_BATCH: Final = 1000


def read_arrow(path: Path, split: str | None = None) -> Instances:
    """The instances of a data set folder, or of an ``.arrow`` file.

    Args:
        path: a folder that ``save_to_disk`` made, of one split or of several; or one file of it.
        split: which split, where there are several.

    Raises:
        UserError: pyarrow is not installed, or one of several splits was not chosen.
        DataError: there is no such data set, it lacks a column, or the first row is malformed; while iterating: a file
            is damaged, or a row malformed or longer or shorter than the first.
        StorageError: a file cannot be read.
    """
    _import_pyarrow()
    files = _find(path, split)
    length = next((length for _, length in _rows(files)), 0)
    if not length:
        raise DataError(f"{path}: holds no row, or one without a token")

    def read() -> Iterator[Instance]:
        for number, (instance, row_length) in enumerate(_rows(files)):
            if row_length != length:
                raise DataError(f"{path}: row {number} has {row_length} input_ids, the first {length}")
            yield instance

    return Instances(files=tuple(map(str, files)), read=read, sequence_length=length)


def write_arrow(path: Path, instances: Instances) -> None:
    """Write a data set folder of one file, which ``datasets.load_from_disk`` takes.

    Raises:
        UserError: pyarrow is not installed, or the folder is there already.
        StorageError: the disk is full, read-only or failing; nothing is left behind.
    """
    arrow = _import_pyarrow()
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
        write_file(folder / STATE, dump_json(_state(name, fingerprint)))


def _import_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise UserError(
            "Arrow data sets need pyarrow, the extra 'arrow': .venv/bin/pip install -e '.[arrow]'"
        ) from None
    return pyarrow


def _find(path: Path, split: str | None) -> tuple[Path, ...]:
    """The ``.arrow`` files of a data set, in their order."""
    if path.is_file():
        return (path,)
    if (path / SPLITS).is_file():
        path = path / _choose(path, split)
    elif split is not None:
        raise UserError(f"{path} has no splits; leave out --split")
    if not (path / STATE).is_file():
        raise DataError(f"{path}: has no {STATE}; expected a folder that save_to_disk made, or an .arrow file")
    state = read_json(path / STATE, "the state of the data set")
    entries = state.get("_data_files") if isinstance(state, dict) else None
    entries = entries if isinstance(entries, list) else []
    names: list[Any] = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if not names or not all(map(_is_name, names)):
        raise DataError(f"{path / STATE}: expected _data_files, a list of file names; the file is damaged")
    if state.get("_indices_data_files"):
        raise DataError(f"{path}: its rows are a selection of other rows; save it after flatten_indices()")
    return tuple(path / name for name in names)


def _choose(path: Path, split: str | None) -> str:
    content = read_json(path / SPLITS, "the list of splits")
    splits = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(splits, list) or not all(map(_is_name, splits)):
        raise DataError(f"{path / SPLITS}: expected splits, a list of names; the file is damaged")
    if split is None and len(splits) == 1:
        return str(splits[0])
    if split is None or split not in splits:
        raise UserError(f"{path} has the splits {', '.join(splits)[:200]}; choose one with --split")
    return split


def _is_name(value: object) -> bool:
    """Whether it is the name of something in a folder, and leads nowhere else."""
    return isinstance(value, str) and value not in ("", ".", "..") and value == Path(value).name


def _rows(files: tuple[Path, ...]) -> Iterator[tuple[Instance, int]]:
    """Each row's instance, and the length that it is padded to."""
    for path in files:
        number = 0
        for batch in _batches(path):
            for row in zip(*(_column(batch, name, path) for name in (*_LISTS, _LABEL)), strict=True):
                yield _decode(row, f"{path}: row {number}"), len(row[0])
                number += 1


def _batches(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    """The batches of a file, each checked in full.

    Raises:
        DataError: the file is missing or damaged, or lacks a column.
        StorageError: it cannot be read.
    """
    arrow = _import_pyarrow()
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; the data set is incomplete")
    _check_messages(path)
    try:
        with arrow.memory_map(str(path)) as source, arrow.ipc.open_stream(source) as stream:
            _check_schema(path, stream.schema)
            for batch in stream:
                batch.validate(full=True)
                yield batch
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: is damaged, or no Arrow stream ({str(error).splitlines()[0][:100]})") from None


def _check_messages(path: Path) -> None:
    """Go from message to message of a stream, so that pyarrow meets no length that the file does not have.

    Raises:
        DataError: a message is cut off, or a batch compressed; or the stream does not end where the file does.
        StorageError: it cannot be read.
    """
    place = 0
    with translated("read", path), path.open("rb") as file:
        size = path.stat().st_size
        while (head := file.read(_HEAD.size)) != _END_OF_STREAM:
            mark, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            if mark != _CONTINUES or not 0 < length <= min(_MAX_METADATA_BYTES, size - place - _HEAD.size):
                raise DataError(f"{path}: at byte {place} is no message of an Arrow stream; it is damaged or truncated")
            body, is_compressed = _describe(path, place, file.read(length))
            if is_compressed:
                raise DataError(f"{path}: its batches are compressed, which `datasets` never does; save it anew")
            if not 0 <= body <= size - file.tell():
                raise DataError(f"{path}: the message at byte {place} has {body} bytes; {size - file.tell()} are left")
            place = file.seek(body, os.SEEK_CUR)
        if place + _HEAD.size != size:
            raise DataError(f"{path}: its stream ends before the file; it is damaged")


def _describe(path: Path, place: int, metadata: bytes) -> tuple[int, bool]:
    """How many bytes of a message follow its metadata, and whether it is a batch with compressed buffers.

    A message is a table of flatbuffers with the fields version, kind, content and length of the body; a batch is one
    with length, nodes, buffers and compression.
    """
    try:
        (table,) = struct.unpack_from("<I", metadata)
        _, kind, content, body = (_field_of(metadata, table, number) for number in range(4))
        is_batch = kind and content and metadata[kind] == _IS_BATCH
        batch = content + struct.unpack_from("<I", metadata, content)[0] if is_batch else 0
        is_compressed = bool(batch) and _field_of(metadata, batch, 3) > 0
        return struct.unpack_from("<q", metadata, body)[0] if body else 0, is_compressed
    except (struct.error, IndexError):
        raise DataError(f"{path}: the message at byte {place} is damaged") from None


def _field_of(metadata: bytes, table: int, number: int) -> int:
    """Where a table's field is, 0 if it has none."""
    layout = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, layout)[0]:
        return 0
    offset: int = struct.unpack_from("<H", metadata, layout + 4 + 2 * number)[0]
    return offset and table + offset


def _check_schema(path: Path, schema: "pyarrow.Schema") -> None:
    arrow = _import_pyarrow()
    names = (*_LISTS, _LABEL)
    if sorted(schema.names) != sorted(names):
        odd = ", ".join(sorted(set(schema.names) ^ set(names)))[:200]
        raise DataError(f"{path}: its columns are others than BERT's five: {odd!r} is missing, unknown or twice there")
    for name in names:
        kind = schema.field(name).type
        is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
        item = kind.value_type if is_list else kind
        if is_list is (name == _LABEL) or not arrow.types.is_integer(item):
            raise DataError(f"{path}: its column {name} is of type {str(kind)[:60]}; expected integers in it")


def _column(batch: "pyarrow.RecordBatch", name: str, path: Path) -> Iterator[Any]:
    """The values of a column, of integers or of arrays of integers."""
    column = batch.column(batch.schema.names.index(name))
    values = column if name == _LABEL else column.flatten()
    if column.null_count or values.null_count:
        raise DataError(f"{path}: its column {name} has places without a value; expected none")
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if name == _LABEL:
        return iter(numbers.tolist())
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    return iter(np.split(numbers, (offsets[1:-1] - offsets[0])) if len(column) else [])


def _decode(row: tuple[Any, ...], where: str) -> Instance:
    """The instance of a row.

    Raises:
        DataError: its columns do not fit together.
    """
    tokens, mask, segments, labels, label = row
    if not len(tokens) == len(mask) == len(segments) == len(labels):
        raise DataError(f"{where}: its columns are of several lengths")
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
    arrow = _import_pyarrow()
    columns: dict[str, list[Integers]] = {
        "input_ids": [padded(row.tokens, length) for row in rows],
        "attention_mask": [padded(np.ones_like(row.tokens), length) for row in rows],
        "token_type_ids": [padded(row.segments, length) for row in rows],
        "labels": [_labels(row, length) for row in rows],
    }
    offsets = arrow.array(np.arange(0, (len(rows) + 1) * length, length, dtype=np.int32))
    lists = [
        arrow.ListArray.from_arrays(offsets, arrow.array(np.concatenate(columns[name]).astype(kind)))
        for name, kind in _LISTS.items()
    ]
    label = arrow.array([row.next_sentence_label for row in rows], type=arrow.int64())
    return arrow.record_batch([*lists, label], schema=schema)


def _labels(instance: Instance, length: int) -> NDArray[np.int64]:
    labels = np.full(length, NOT_SCORED, dtype=np.int64)
    labels[instance.positions] = instance.labels
    return labels


def _value(kind: str) -> dict[str, str]:
    return {"dtype": kind, "_type": "Value"}


def _state(name: str, fingerprint: str) -> dict[str, Any]:
    """What ``load_from_disk`` asks of a data set beside its rows."""
    return {
        "_data_files": [{"filename": name}],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


class _Sink:
    """What pyarrow needs of a file to write to it, so that the bytes go through `hornbook.storage`."""

    closed = False

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer

    def write(self, data: BytesLike) -> int:
        self._writer.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The writer is closed by whoever opened it."""
