"""Evaluation data as people publish them: one text in a file, or one passage a line of JSON.

    wiki.test.tokens            "= Robert Boulter = ..."          -> read_text
    lambada_test.jsonl          {"text": "... about signs"}       -> read_passages
                                {"text": "... on my own, Shane"}

An evaluation file is a measure, so nothing in it is passed over: a blank line is as much of an error as a malformed
one. Files may be compressed, as everywhere.
"""

import json
from typing import Final

from hornbook.errors import DataError
from hornbook.storage import open_text_source
from hornbook.storage.system import format_bytes

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LARGEST_FILE: Final = 256 << 20


def read_text(path: str) -> str:
    """Return the text of a file, as it is.

    Raises:
        UserError: there is no such file.
        DataError: it holds no text, is not UTF-8, or has over 256 MiB.
        StorageError: the disk failed.
    """
    text = _decode(_read(path), path, "")
    if not text.strip():
        raise DataError(f"{path}: there is no text in it; expected the text to score")
    return text


def read_passages(path: str, field: str = "text") -> list[str]:
    """Return the passages of a JSONL file, in its order: the ``field`` of each line.

    Raises:
        UserError: there is no such file.
        DataError: it is empty or too large, or one of its lines is: blank, not UTF-8, not JSON, without the field, or
            without text in it; names file and line.
        StorageError: the disk failed.
    """
    lines = _read(path).removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise DataError(f"{path}: the file is empty; expected JSONL with a field {field!r}")
    return [_passage(line, f"{path}, line {number}", field) for number, line in enumerate(lines, 1)]


def _read(path: str) -> bytes:
    with open_text_source(path) as stream:
        data = stream.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise DataError(f"{path}: holds over {format_bytes(_LARGEST_FILE)}; evaluate on a part of it")
    return data.removeprefix(_BYTE_ORDER_MARK)


def _passage(line: bytes, place: str, field: str) -> str:
    if not line.strip():
        raise DataError(f"{place}: the line is blank; expected a JSON object with a field {field!r}")
    try:
        record = json.loads(_decode(line, place, " of the line"))
    except (ValueError, RecursionError) as error:  # a DataError is neither
        raise DataError(f"{place}: not valid JSON ({' '.join(str(error).split())}); mend the line") from error
    if not isinstance(record, dict) or field not in record:
        raise DataError(f"{place}: no field {field!r}; expected an object with one, as in {{{json.dumps(field)}: ...}}")
    text = record[field]
    if not isinstance(text, str) or not text.strip() or not _is_unicode(text):
        raise DataError(f"{place}: the field {field!r} holds no text; mend the line")
    return text


def _decode(data: bytes, place: str, of: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wrong = data[error.start]
        raise DataError(f"{place}: not UTF-8 at byte {error.start}{of} (0x{wrong:02x}); convert the file") from error


def _is_unicode(text: str) -> bool:
    """Tell whether a text has an encoding: JSON can write half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
