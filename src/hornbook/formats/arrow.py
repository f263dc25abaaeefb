"""Arrow files of Hugging Face data sets: found in their folder, and opened with pyarrow.

    folder/state.json                      {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...]}
    folder/data-00000-of-00002.arrow       a stream of record batches, as save_to_disk writes it
    table.arrow                            ARROW1 | batches | their table | ARROW1, as pyarrow, polars and R write it

pyarrow believes the lengths that a file states, so a damaged file may end the process that reads it: a file of others
is read in a child process (`hornbook.formats.child`).
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hornbook.errors import DataError, UserError
from hornbook.extras import require
from hornbook.storage.json_files import read_json
from hornbook.storage.system import as_storage_error, storage_errors

if TYPE_CHECKING:
    import pyarrow

STATE: Final = "state.json"
SPLITS: Final = "dataset_dict.json"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
_FILE_MARK: Final = b"ARROW1"
_NOT_OF_THE_SYSTEM: Final = (None, 0, errno.EINVAL)
"""What an ``OSError`` has for a number if content is to blame: it may state a place or a length that cannot be."""


def import_pyarrow(what: str = "Arrow data sets") -> Any:
    """The module ``pyarrow``. Raises UserError if it is not installed; the message says that ``what`` needs it."""
    return require("pyarrow", extra="arrow", purpose=f"working with {what}")


def shown(said: object) -> str:
    """What pyarrow says, of an error or a type, in one short line: it quotes whatever a file holds."""
    text = "".join(character if character.isprintable() else " " for character in str(said)[:1000])
    return " ".join(text.split())[:120] or type(said).__name__


@contextmanager
def arrow_errors(path: Path, name: str, what: str, *others: type[Exception]) -> Iterator[None]:
    """Report in one line what pyarrow finds wrong with a file inside the block.

    Args:
        path: of the file.
        name: what errors call it.
        what: the file should be, as in "Parquet file".
        others: errors that a damaged file of this kind may raise, beside pyarrow's own.

    Raises:
        DataError: the file is damaged, for which pyarrow raises an ``OSError``, too, but without the system's number.
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
    """Return the ``.arrow`` files of a split of a folder that ``save_to_disk`` made, in their order.

    Raises UserError if ``split`` is missing, unknown or useless; and DataError if there is no such folder, it is
    damaged, or its rows are only a selection of those in its files.
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
def open_batches(path: Path, name: str | None = None) -> Iterator[tuple["pyarrow.Schema", Iterator[Any]]]:
    """Open an Arrow file: yield its schema, and its record batches as they lie in the file, mapped into memory.

    Raises UserError without pyarrow, and DataError, here or in the block, if the file is missing or damaged.
    """
    arrow = import_pyarrow()
    name = name or str(path)
    if not path.is_file():
        raise DataError(f"{name}: there is no such file; the data set is incomplete")
    with storage_errors("read", path), path.open("rb") as file:
        is_file = file.read(len(_FILE_MARK)) == _FILE_MARK
        file.seek(max(0, path.stat().st_size - len(_END_OF_STREAM)))
        if not is_file and file.read() != _END_OF_STREAM:  # for pyarrow, a stream may end after any batch
            raise DataError(f"{name}: is no Arrow stream, or a truncated one; fetch the file again")
    with arrow_errors(path, name, "Arrow file", MemoryError), arrow.memory_map(str(path)) as source:
        if is_file:
            with arrow.ipc.open_file(source) as table:
                yield table.schema, map(table.get_batch, range(table.num_record_batches))
        else:
            with arrow.ipc.open_stream(source) as stream:
                yield stream.schema, iter(stream)


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
