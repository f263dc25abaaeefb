r"""Strict reading of small JSON files, which rejects content that parsers interpret differently, and writing them.

dump_json({"step": 5})                  b'{\n  "step": 5\n}\n', the same bytes for the same value
read_json(path, "the manifest")         {"step": 5}, or a DataError of one line
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Final

from hornbook.errors import DataError, StorageError
from hornbook.storage.system import format_bytes, open_regular, read_at_most, storage_errors

MAX_JSON_BYTES: Final = 64 << 20


def read_bytes(path: Path, what: str, *, limit: int = MAX_JSON_BYTES, follow: bool = True) -> bytes:
    """Return the content of a small file, ``what`` in errors, also a link if ``follow``; see ``open_regular``.

    Raises DataError if it is missing, too large or no regular file.
    """
    try:
        with storage_errors("read", path), open_regular(path, follow=follow) as file:
            data = read_at_most(file, limit + 1)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise DataError(f"{path}: {what} is missing; check the path") from error
        if isinstance(error.__cause__, IsADirectoryError):
            raise DataError(f"{path}: {what} is not a regular file but a folder; check the path") from error
        raise
    if len(data) > limit:
        raise DataError(f"{path}: {what} is larger than {format_bytes(limit)}; check the path")
    return data


def read_json(path: Path, what: str, *, follow: bool = True) -> Any:
    """Return the value in a JSON file. Raises DataError if ``what`` is missing, too large or malformed."""
    return parse_json(read_bytes(path, what, follow=follow), f"{path}: {what}")


def parse_json(data: bytes, what: str) -> Any:
    """Return the value of JSON in UTF-8, see ``load_strictly``. Raises DataError, with ``what`` as prefix."""
    try:
        return load_strictly(data.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{what} is not valid JSON ({reason}); restore the file") from error


def load_strictly(text: str) -> Any:
    """Return the value of JSON without repeated keys, NaN and Infinity. Raises ValueError or RecursionError."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)


def dump_sealed(values: dict[str, Any]) -> bytes:
    """Return a non-empty object as JSON with a ``checksum``, the SHA-256 of the rest as JSON; for ``is_intact``."""
    empty = b'\n  "checksum": "%s"' % (b"0" * 64)  # indented so, it is a key of the object itself
    sealed = dump_json(values | {"checksum": "0" * 64})  # once: a manifest of 100 layers takes a second
    before, _, after = sealed.partition(empty)
    rest = before + after.removeprefix(b",") if after.startswith(b",") else before.removesuffix(b",") + after
    return before + empty.replace(b"0" * 64, hashlib.sha256(rest).hexdigest().encode()) + after


def is_intact(values: dict[str, Any]) -> bool:
    """Return whether an object matches its ``checksum``; True without one, since older versions did not write it."""
    content = dict(values)
    found = content.pop("checksum", None)
    return found is None or found == hashlib.sha256(dump_json(content)).hexdigest()


def dump_json(value: Any) -> bytes:
    """Return indented JSON with sorted keys: equal values give equal bytes. Raises ValueError for NaN and Infinity.

    Halves of characters, which JSON permits and UTF-8 does not have, are escaped.
    """
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return values


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} exceeds the range of numbers")
    return number


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
