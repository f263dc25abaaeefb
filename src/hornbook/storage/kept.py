"""Facts about this machine and its libraries, kept in the user's cache from one process to the next.

    keep("peaks", "AMD EPYC 9R14, a product in fp32", 9.1e10)
    kept("peaks", "AMD EPYC 9R14, a product in fp32")  ->  9.1e10

    ~/.cache/hornbook/peaks/3f0c....json  {"of": "AMD EPYC 9R14, a product in fp32", "value": 9.1e10}

A file that is missing or damaged is as good as none, and the price of one that cannot be written is that the next
process finds out for itself. So a fact must be cheap to do without, and harmless if it is wrong.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hornbook.errors import HornbookError
from hornbook.storage.files import temporary_beside
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.storage.system import cache_home

_MOST_BYTES: Final = 4096


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
