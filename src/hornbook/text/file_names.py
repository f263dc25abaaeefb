"""Names of files: which ones are read, and as what.

content_suffix("c4.JSON.gz")           -> ".json"
has_suffix("c4.json.gz", [".json"])    -> True
is_excluded("a/.git/c4.json", [".*"])  -> True
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath

from hornbook.storage.decompress import COMPRESSED_SUFFIXES


def content_suffix(path: str) -> str:
    """Return the suffix before that of a compression, in lower case: ``.json`` for ``c4.JSON.gz``."""
    pure = PurePath(path.lower())
    return (pure.with_suffix("") if pure.suffix in COMPRESSED_SUFFIXES else pure).suffix


def is_excluded(path: str | PurePath, patterns: Sequence[str]) -> bool:
    """Return whether the name of a file, or of a folder in its path, matches one of the patterns."""
    return any(fnmatchcase(part, pattern) for part in PurePath(path).parts for pattern in patterns)


def has_suffix(path: str, suffixes: Sequence[str]) -> bool:
    """Return whether a path has one of the suffixes, also before that of a compression; no suffixes match any path."""
    lower = path.lower()
    names = [lower, *(lower.removesuffix(ending) for ending in COMPRESSED_SUFFIXES if lower.endswith(ending))]
    return not suffixes or any(name.endswith(suffix.lower()) for name in names for suffix in suffixes)
