"""Read the data of tasks: stores, or published evaluation data, one text per file or one JSON passage per line.

    wiki.test.tokens            "= Robert Boulter = ..."          -> read_text
    lambada_test.jsonl          {"text": "... about signs"}       -> read_passages
                                {"text": "... on my own, Shane"}

Nothing in an evaluation file is skipped, since that would change the result: a blank line is an error, like a malformed
one. Files may be compressed.
"""

import io
from typing import Any, Final

from hornbook.corpora.store import TokenStore, open_held_out, open_store
from hornbook.errors import DataError, UserError
from hornbook.evaluate.tasks import TaskInput
from hornbook.storage import open_text_source
from hornbook.storage.system import format_bytes
from hornbook.text.readers.jsonl import read_objects, text_in, utf8_of
from hornbook.text.reading import BYTE_ORDER_MARK


def held_out_stores(given: TaskInput) -> list[TokenStore]:
    """Return one store or several, made with the model's tokenizer as far as is known.

    Raises:
        UserError: no store is named or held out, or its tokenizer is not the model's.
        DataError: a store is malformed.
        CheckpointError: the model has no tokenizer.
    """
    stores = open_scored(given)
    own, tokenizer = stores[0].tokenizer(), given.loaded.require_tokenizer()
    if own is not None and own.digest != tokenizer.digest:
        raise UserError(
            f"the store was made with tokenizer {own.digest[:12]}, but the model with {tokenizer.digest[:12]}: "
            "build the store with the model's tokenizer.json"
        )
    return stores


def open_scored(given: TaskInput) -> list[TokenStore]:
    """Return the named store or its validation split, or else the run's held-out stores, whatever their tokenizer.

    The training data is scored only if the user names it: its score looks like one on held-out text, but is better.
    See `held_out_stores` for errors.
    """
    data = given.loaded.recipe.data
    if named := given.data or data.validation:
        return [open_store(named, "validation", data.chunk_cache)]
    if not data.train:
        raise UserError(f"the run names no validation data: say which store to score with `{given.data_option}=FOLDER`")
    if stores := open_held_out(data.train, data.chunk_cache):
        return stores
    raise UserError(
        f"nothing is held out of {', '.join(data.train)}, the run's training data: name a store by "
        f"`{given.data_option}=FOLDER` (in a recipe by data.validation), or name the training store to score its text"
    )


_LARGEST_FILE: Final = 256 << 20
_FIELD: Final = "text"


def read_text(path: str) -> str:
    """Return the text of a file, unchanged.

    Raises:
        UserError: the file is missing.
        DataError: it has no text, is not UTF-8, or is larger than 256 MiB.
        StorageError: the disk failed.
    """
    data = _read(path).removeprefix(BYTE_ORDER_MARK)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        found = f"byte {error.start} (0x{data[error.start]:02x})"
        raise DataError(f"{path}: not UTF-8 at {found}; convert the file to UTF-8") from error
    if not text.strip():
        raise DataError(f"{path}: the file has no text; expected the text to score")
    return text


def read_passages(path: str) -> list[str]:
    """Return the passages of a JSONL file, in file order: the field "text" of each line.

    Raises:
        UserError: the file is missing.
        DataError: it is empty or too large, or a line is blank, not UTF-8, not JSON, lacks the field or has no text in
            it; names file and line.
        StorageError: the disk failed.
    """
    stream = io.BytesIO(_read(path))
    passages = [
        _passage(record, place) for place, record in read_objects(stream, path, _LARGEST_FILE, skip_blank=False)
    ]
    if not passages:
        raise DataError(f"{path}: the file is empty; expected JSONL with a field {_FIELD!r}")
    return passages


def _read(path: str) -> bytes:
    with open_text_source(path) as stream:
        data = stream.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise DataError(f"{path}: is larger than {format_bytes(_LARGEST_FILE)}; evaluate on a part of it")
    return data


def _passage(record: dict[str, Any], place: str) -> str:
    text = text_in(record, _FIELD, place)
    utf8_of(text, place)
    if not text.strip():
        raise DataError(f"{place}: the field {_FIELD!r} has no text; correct the line")
    return text
