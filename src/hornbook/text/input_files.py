"""From what a user names to the files that are read: files, folders, globs and standard input.

    ["books/", "more/*.jsonl.gz", "-"]  ->  ["books/a.txt", "books/b/c.txt", "more/1.jsonl.gz", "-"]

Folders are searched to their depths, in the order of their entries' names, so that the same files give the same order
on every machine; hidden files and folders are passed over, links are followed. A file is read once, at its first place,
by whatever names and symbolic links it is reached. The price: nobody repeats a file by naming it twice.
"""

import glob
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Final

from hornbook.errors import UserError
from hornbook.storage.decompress import COMPRESSED_SUFFIXES

STANDARD_INPUT: Final = "-"
HUB_SCHEME: Final = "hf:"
"""What an input begins with that is a data set of the Hugging Face hub, or a file of one."""


def find_sources(
    inputs: Sequence[str | Path], *, suffixes: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[str]:
    """List the files to read, each once, by the first of its names; none where all inputs are left out by name.

    Args:
        inputs: files, folders, globs (``**`` goes through folders), ``"-"`` for standard input.
        suffixes: take only files of such an ending, as in ``".py"``, out of folders and globs; a compressed
            ``a.py.gz`` counts as ``.py``, too. A file named outright is always taken.
        exclude: patterns as in ``"test*"``; what has a name that fits one is left out, whether an input names it
            (as a shell does that expands a glob) or it is found below; the folders above an input, and above a glob's
            first wildcard, are not looked at.

    Raises:
        UserError: there is no input, one names nothing, or nothing is left below it.
    """
    if not inputs:
        raise UserError("no input was named: expected files, folders, globs, or - for standard input")
    sources: list[str] = []
    for name in (os.fspath(item) for item in inputs):
        if Path(name).exists() and is_excluded(PurePath(name).name, exclude):
            continue
        found = [path for path in _expand(name, exclude) if path == name or has_suffix(path, suffixes)]
        if not found:
            conditions = [f"suffix {' or '.join(suffixes)}"] * bool(suffixes) + [f"not {p}" for p in exclude]
            asked = f" ({', '.join(conditions)})" if conditions else ""
            raise UserError(f"{name}: there is no file to read{asked}; hidden files do not count")
        sources += found
    return each_once(sources)


def each_once(sources: Iterable[str]) -> list[str]:
    """Leave out sources that are a file by another name, through symbolic links too; the first name stays."""
    first: dict[str, str] = {}
    for name in sources:
        first.setdefault(name if name == STANDARD_INPUT else os.path.realpath(name), name)
    return list(first.values())


def content_suffix(path: str) -> str:
    """Return the ending that tells the format, in lower case: ``.json`` for ``c4.JSON.gz``."""
    pure = PurePath(path.lower())
    return (pure.with_suffix("") if pure.suffix in COMPRESSED_SUFFIXES else pure).suffix


def check_patterns(exclude: Sequence[str]) -> None:
    """Refuse patterns that are of a path, since no single name would ever fit one.

    Raises:
        UserError: one has a slash.
    """
    for pattern in exclude:
        if "/" in pattern:
            name = next((part for part in reversed(pattern.split("/")) if part.strip("*")), "*")
            raise UserError(
                f"--exclude {pattern!r:.120} would leave out nothing: a pattern is of one name, that of a file or of a "
                f"folder; say --exclude {shlex.quote(name):.120}"
            )


def is_excluded(path: str | PurePath, patterns: Sequence[str]) -> bool:
    """Tell whether the name of a file, or of a folder that it is in, fits one of the patterns."""
    return any(fnmatchcase(part, pattern) for part in PurePath(path).parts for pattern in patterns)


def has_suffix(path: str, suffixes: Sequence[str]) -> bool:
    """Tell whether a file has one of some endings, perhaps before a compression's; any will do if there are none."""
    lower = path.lower()
    names = [lower, *(lower.removesuffix(ending) for ending in COMPRESSED_SUFFIXES if lower.endswith(ending))]
    return not suffixes or any(name.endswith(suffix.lower()) for name in names for suffix in suffixes)


def _expand(name: str, exclude: Sequence[str]) -> list[str]:
    path = Path(name)
    if name == STANDARD_INPUT:
        return [name]
    if path.is_dir():
        return list(_walk(name, exclude, set()))
    if path.exists():
        return [name]
    if not glob.has_magic(name):
        raise UserError(f"{name}: no such file or folder; check the path")
    found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    named = next(place for place, part in enumerate(path.parts) if glob.has_magic(part))
    matches = [match for match in found if not is_excluded(PurePath(*PurePath(match).parts[named:]), exclude)]
    entered: set[tuple[int, int]] = set()
    return [
        path for match in matches for path in (_walk(match, exclude, entered) if Path(match).is_dir() else (match,))
    ]


def _walk(folder: str, exclude: Sequence[str], entered: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the files below a folder in the order of names; a folder is entered once, however many links lead to it.

    ``entered`` has device and inode of those folders, and is added to.
    """
    try:
        status = Path(folder).stat()
        if (identity := (status.st_dev, status.st_ino)) in entered:
            return
        entered.add(identity)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}; check its permissions") from error
    for entry in entries:
        if entry.name.startswith(".") or is_excluded(entry.name, exclude):
            continue
        place = Path(entry.path) if entry.is_symlink() else entry  # of a link to itself, an entry raises OSError
        if place.is_dir():
            yield from _walk(entry.path, exclude, entered)
        elif place.is_file() or entry.is_symlink():  # a dangling link is an error when it is opened, not a gap
            yield entry.path
