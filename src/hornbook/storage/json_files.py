r"""Strict reading of small JSON files, which rejects content that parsers interpret differently, and writing them.

    dump_json({"step": 5})                  b'{\n  "step": 5\n}\n', the same bytes for the same value
    read_json(path, "the manifest")         {"step": 5}, or a DataError of one line

Facts about this machine and its libraries are such files in the user's cache, kept from one process to the next::

    keep("peaks", "AMD EPYC 9R14, a product in fp32", 9.1e10)
    kept("peaks", "AMD EPYC 9R14, a product in fp32")  ->  9.1e10

    ~/.cache/hornbook/peaks/3f0c....json  {"of": "AMD EPYC 9R14, a product in fp32", "value": 9.1e10}

A file that is missing or damaged is as good as none, and the price of one that cannot be written is that the next
process finds out for itself. So a fact must be cheap to do without, and harmless if it is wrong.
"""

import hashlib
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hornbook.errors import DataError, HornbookError, StorageError
from hornbook.storage.files import temporary_beside
from hornbook.storage.system import cache_home, format_bytes, open_regular, read_at_most, storage_errors

MAX_JSON_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 4096
"""Of a kept fact."""


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


def kept(kind: str, of: str) -> Any:
    """Return the value that was kept of something, whose type the caller checks; None if there is none."""
    try:
        path = _path(kind, of)
        found = parse_json(read_bytes(path, "a kept fact", limit=_MOST_BYTES), f"{path}: a kept fact")
    except (HornbookError, OSError, RuntimeError):  # without a home folder
        return None
    return found.get("value") if isinstance(found, dict) and found.get("of") == of else None


def keep(kind: str, of: str, value: bool | float) -> None:
    """Keep a value, unless the cache cannot be written.

    Args:
        kind: name of a folder in the user's cache.
        of: all that the value depends on.
        value: what ``kept`` returns from now on.
    """
    with suppress(RuntimeError, OSError):
        path = _path(kind, of)
        partial = temporary_beside(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(dump_json({"of": of, "value": value}))
            partial.replace(path)
        except OSError:
            partial.unlink()


def _path(kind: str, of: str) -> Path:
    return cache_home() / kind / f"{hashlib.sha256(of.encode()).hexdigest()[:16]}.json"
