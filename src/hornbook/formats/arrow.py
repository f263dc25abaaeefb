"""Arrow files of Hugging Face data sets: found in their folder, and walked through before pyarrow meets them.

    folder/state.json                      {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...]}
    folder/data-00000-of-00002.arrow       message | message | ... | end      a head, flatbuffers, a body, each

    with open_stream(path) as stream:
        for batch in stream: ...

    table.arrow, as pyarrow, polars and R write it         ARROW1 | the same stream | a table of its batches | ARROW1

What ``save_to_disk`` writes is read with pyarrow, the extra ``arrow``. pyarrow maps a file into memory and believes the
lengths that it states, so each of them is compared with the file first. The price: the heads are read twice.
"""

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hornbook.errors import DataError, UserError
from hornbook.extras import require
from hornbook.storage.json_files import read_json
from hornbook.storage.system import as_storage_error, translated

if TYPE_CHECKING:
    import pyarrow

STATE: Final = "state.json"
SPLITS: Final = "dataset_dict.json"
_HEAD: Final = struct.Struct("<Ii")
_CONTINUES: Final = 0xFFFFFFFF
_END_OF_STREAM: Final = _HEAD.pack(_CONTINUES, 0)
_FILE_MARK: Final = b"ARROW1"
_STREAM_IN_FILE: Final = 8
_IS_DICTIONARY: Final = 2
_IS_BATCH: Final = 3
_MAX_METADATA_BYTES: Final = 16 << 20
_NOT_OF_THE_SYSTEM: Final = (None, 0, errno.EINVAL)
"""What an ``OSError`` has for a number if content is to blame: it may state a place or a length that cannot be."""


def import_pyarrow(what: str = "Arrow data sets") -> Any:
    """The module ``pyarrow``.

    Raises:
        UserError: it is not installed; the message says that ``what`` needs it.
    """
    return require("pyarrow", extra="arrow", purpose=f"working with {what}")


def shown(said: object) -> str:
    """What pyarrow says, of an error or a type, in one short line: it quotes whatever a file holds."""
    text = "".join(character if character.isprintable() else " " for character in str(said)[:1000])
    return " ".join(text.split())[:120] or type(said).__name__


@contextmanager
def damage_told(path: Path, name: str, what: str, *others: type[Exception]) -> Iterator[None]:
    """Tell in one line what pyarrow finds wrong with a file while it reads it in the block.

    Args:
        path: of the file.
        name: what errors call it.
        what: the file should be, as in "Parquet file".
        others: errors that a damaged file of this kind may raise, beside pyarrow's own.

    Raises:
        DataError: the file is damaged, for which pyarrow raises an ``OSError``, too, but without the system's number.
        StorageError: the system could not read it.
    """
    arrow = import_pyarrow(f"{what}s")
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_OF_THE_SYSTEM:
            raise as_storage_error("read", path, error) from error
        raise _damaged(name, what, error) from None
    except (arrow.ArrowException, ValueError, *others) as error:
        raise _damaged(name, what, error) from None


def is_dataset(path: Path) -> bool:
    """Whether ``save_to_disk`` made this folder, of one split or of several."""
    return (path / STATE).is_file() or (path / SPLITS).is_file()


def list_dataset_files(path: Path, split: str | None) -> tuple[Path, ...]:
    """The ``.arrow`` files of a folder that ``save_to_disk`` made, in their order.

    Args:
        path: the folder, of one split or of several.
        split: which split, where there are several.

    Raises:
        UserError: one of several splits was not chosen, or one was where there are none.
        DataError: it is no such folder, or a damaged one, or its rows are only a selection of those in its files.
    """
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


@contextmanager
def open_stream(path: Path, name: str | None = None) -> Iterator["pyarrow.RecordBatchStreamReader"]:
    """Open an ``.arrow`` file whose every length agrees with the file; what pyarrow finds wrong later is told alike.

    Args:
        path: of the file.
        name: what errors call it, if not by its path.

    Raises:
        UserError: pyarrow is not installed.
        DataError: here or in the block: the file is missing or damaged, or its batches are compressed.
        StorageError: it cannot be read.
    """
    arrow = import_pyarrow()
    name = name or str(path)
    if not path.is_file():
        raise DataError(f"{name}: there is no such file; the data set is incomplete")
    start = _check_messages(path, name)
    with (
        damage_told(path, name, "Arrow stream"),
        arrow.memory_map(str(path)) as source,
    ):
        source.seek(start)
        with arrow.ipc.open_stream(source) as stream:
            yield stream


def _damaged(name: str, what: str, error: Exception) -> DataError:
    return DataError(f"{name}: is damaged, or no {what} ({shown(error)})")


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


def _check_messages(path: Path, name: str) -> int:
    """Go from message to message of a stream, so that pyarrow meets no length that the file does not have.

    Returns:
        Where the stream begins: an Arrow file, as against a stream, has a mark before it and a table behind it.

    Raises:
        DataError: a message is cut off, or a batch compressed; or the stream does not end where the file does.
        StorageError: it cannot be read.
    """
    with translated("read", path), path.open("rb") as file:
        size = path.stat().st_size
        start = place = _STREAM_IN_FILE if file.read(len(_FILE_MARK)) == _FILE_MARK else 0
        file.seek(start)
        while (head := file.read(_HEAD.size)) != _END_OF_STREAM:
            mark, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            if mark != _CONTINUES or not 0 < length <= min(_MAX_METADATA_BYTES, size - place - _HEAD.size):
                raise DataError(f"{name}: at byte {place} is no message of an Arrow stream; it is damaged or truncated")
            body, is_compressed = _describe(name, place, file.read(length))
            if is_compressed:
                raise DataError(f"{name}: its batches are compressed; save it again uncompressed, or as Parquet")
            if not 0 <= body <= size - file.tell():
                raise DataError(f"{name}: the message at byte {place} has {body} bytes; {size - file.tell()} are left")
            place = file.seek(body, os.SEEK_CUR)
        file.seek(max(file.tell(), size - len(_FILE_MARK)))
        if file.read() != (_FILE_MARK if start else b""):
            raise DataError(f"{name}: its stream ends before the file; it is damaged")
    return start


def _describe(name: str, place: int, metadata: bytes) -> tuple[int, bool]:
    """How many bytes of a message follow its metadata, and whether it is a batch with compressed buffers.

    A message is a table of flatbuffers with the fields version, kind, content and length of the body; a batch is one
    with length, nodes, buffers and compression; a dictionary has an id and the batch of its values.
    """
    try:
        (table,) = struct.unpack_from("<I", metadata)
        _, kind, content, body = (_field_of(metadata, table, number) for number in range(4))
        named = metadata[kind] if kind and content else 0
        batch = _table_at(metadata, content) if named in (_IS_BATCH, _IS_DICTIONARY) else 0
        if named == _IS_DICTIONARY:
            values = _field_of(metadata, batch, 1)
            batch = _table_at(metadata, values) if values else 0
        is_compressed = bool(batch) and _field_of(metadata, batch, 3) > 0
        return struct.unpack_from("<q", metadata, body)[0] if body else 0, is_compressed
    except (struct.error, IndexError):
        raise DataError(f"{name}: the message at byte {place} is damaged") from None


def _table_at(metadata: bytes, place: int) -> int:
    """The table that a field leads to."""
    offset: int = struct.unpack_from("<I", metadata, place)[0]
    return place + offset


def _field_of(metadata: bytes, table: int, number: int) -> int:
    """Where a table's field is, 0 if it has none."""
    layout = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, layout)[0]:
        return 0
    offset: int = struct.unpack_from("<H", metadata, layout + 4 + 2 * number)[0]
    return offset and table + offset
