"""Arrow files of Hugging Face data sets: finding them in a folder, and opening them with pyarrow.

    folder/state.json                      {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...]}
    folder/data-00000-of-00002.arrow       stream format, record batches written by save_to_disk
    table.arrow                            file format: ARROW1 | batches | their table | ARROW1 (pyarrow, polars, R)

pyarrow trusts the lengths in a file, so a damaged file may crash the process that reads it. Therefore, files are first
read in a child process (`hornbook.formats.child`).
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hornbook.errors import DataError, UserError
from hornbook.extras import require
from hornbook.storage.json_files import read_json
from hornbook.storage.system import as_storage_error, open_regular, storage_errors

if TYPE_CHECKING:
    import pyarrow

STATE: Final = "state.json"
SPLITS: Final = "dataset_dict.json"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
_FILE_MARK: Final = b"ARROW1"
_NOT_OF_THE_SYSTEM: Final = (None, 0, errno.EINVAL)
"""``errno`` of an ``OSError`` caused by the content of a file, such as an impossible offset or length."""


def import_pyarrow(what: str = "Arrow data sets") -> Any:
    """Return the module ``pyarrow``. Raises UserError, which says that ``what`` needs it, if it is not installed."""
    return require("pyarrow", extra="arrow", purpose=f"working with {what}")


def shown(said: object) -> str:
    """Return an error or a type of pyarrow as one short printable line, since it may quote the content of a file."""
    text = "".join(character if character.isprintable() else " " for character in str(said)[:1000])
    return " ".join(text.split())[:120] or type(said).__name__


@contextmanager
def arrow_errors(path: Path, name: str, what: str, *others: type[Exception]) -> Iterator[None]:
    """Convert pyarrow's errors inside the block to errors of one line.

    Args:
        path: the file.
        name: the name of the file in errors.
        what: the expected kind of file, such as "Parquet file".
        others: other exceptions that a damaged file of this kind may cause.

    Raises:
        DataError: the file is damaged; pyarrow may raise an ``OSError`` for this, without an ``errno`` of the system.
        StorageError: the file could not be read.
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
    """Return whether ``save_to_disk`` wrote this folder, with one or more splits."""
    return (path / STATE).is_file() or (path / SPLITS).is_file()


def list_dataset_files(path: Path, split: str | None) -> tuple[Path, ...]:
    """Return the ``.arrow`` files of a split of a folder written by ``save_to_disk``, in order.

    Raises:
        UserError: ``split`` is required, unknown or without effect.
        DataError: there is no such folder, it is damaged, or its rows are a selection of those in its files.
    """
    if (path / SPLITS).is_file():
        path = path / _choose(path, split)
    elif split is not None:
        raise UserError(f"{path} has no splits; remove `split`")
    if not (path / STATE).is_file():
        raise DataError(f"{path}: has no {STATE}; expected a folder written by save_to_disk, or an .arrow file")
    state = read_json(path / STATE, "the state of the data set")
    entries = state.get("_data_files") if isinstance(state, dict) else None
    entries = entries if isinstance(entries, list) else []
    names: list[Any] = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if not names or not all(map(_is_name, names)):
        raise DataError(f"{path / STATE}: expected _data_files, a list of file names; the file is damaged")
    if state.get("_indices_data_files"):
        raise DataError(f"{path}: the rows are a selection from the files; save it again after flatten_indices()")
    return tuple(path / name for name in names)


@contextmanager
def open_batches(path: Path, name: str | None = None) -> Iterator[tuple["pyarrow.Schema", Iterator[Any]]]:
    """Open an Arrow file and yield its schema and an iterator over its memory-mapped record batches.

    Raises UserError if pyarrow is not installed, and DataError, here or in the block, if the file is missing or
    damaged.
    """
    arrow = import_pyarrow()
    name = name or str(path)
    if not path.is_file():
        raise DataError(f"{name}: no such file; the data set is incomplete, save or download it again")
    with storage_errors("read", path), open_regular(path) as file:
        is_file = file.read(len(_FILE_MARK)) == _FILE_MARK
        file.seek(max(0, path.stat().st_size - len(_END_OF_STREAM)))
        if not is_file and file.read() != _END_OF_STREAM:  # pyarrow accepts a stream that ends after any batch
            raise DataError(f"{name}: not an Arrow stream, or truncated; download the file again")
    with arrow_errors(path, name, "Arrow file", MemoryError), arrow.memory_map(str(path)) as source:
        if is_file:
            with arrow.ipc.open_file(source) as table:
                yield table.schema, map(table.get_batch, range(table.num_record_batches))
        else:
            with arrow.ipc.open_stream(source) as stream:
                yield stream.schema, iter(stream)


def _damaged(name: str, what: str, error: Exception) -> DataError:
    return DataError(f"{name}: damaged, or not a valid {what} ({shown(error)}); check the path, or restore the file")


def _choose(path: Path, split: str | None) -> str:
    content = read_json(path / SPLITS, "the list of splits")
    splits = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(splits, list) or not all(map(_is_name, splits)):
        raise DataError(f"{path / SPLITS}: expected splits, a list of names; the file is damaged")
    if split is None and len(splits) == 1:
        return str(splits[0])
    if split is None or split not in splits:
        raise UserError(f"{path} has the splits {', '.join(splits)[:200]}; choose one with `split`")
    return split


def _is_name(value: object) -> bool:
    """Return whether a value is a plain file name, so that it cannot lead out of its folder."""
    return isinstance(value, str) and value not in ("", ".", "..") and value == Path(value).name
