"""Files of other storage systems as inputs, by the URLs of fsspec: ``s3://``, ``gs://``, ``abfs://``, ``https://`` ...

    list_files("s3://texts/web/*.jsonl.gz")        ["s3://texts/web/00.jsonl.gz", "s3://texts/web/01.jsonl.gz", ...]
    with fetched("s3://texts/web/00.jsonl.gz") as path:      a local copy, which the block's end removes

A file is copied before it is read, since readers seek and a dropped connection must not end a document: the price is
disk for one file per process. A failed copy is tried again. Credentials are those of the protocol's library.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from hornbook.errors import HornbookError, UserError
from hornbook.extras import require
from hornbook.storage.system import storage_errors
from hornbook.text.file_names import has_suffix, is_excluded

_ATTEMPTS: Final = 4
_FIRST_WAIT: Final = 0.5
_COPIED_BYTES: Final = 8 << 20

_OWN_ERRORS: Final = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))

T = TypeVar("T")


def list_files(name: str, *, suffixes: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[str]:
    """Return the files of a URL, sorted by name: a file, those that match a pattern, or those below a folder.

    Args:
        name: the URL.
        suffixes: of folders and patterns, return only files with one of these suffixes.
        exclude: skip files and folders whose names match one of these patterns.

    Raises:
        UserError: nothing matches, access is denied, or the protocol's library is not installed.
        HornbookError: the server cannot be reached.
    """
    system, path = open_system(name)
    if any(mark in path for mark in "*?["):
        found = retried(name, lambda: system.glob(path))
    elif retried(name, lambda: system.isfile(path)):
        return [name]
    else:
        found = retried(name, lambda: system.find(path))
    root = path.partition("*")[0].rpartition("/")[0] if "*" in path else path
    urls = [
        str(system.unstrip_protocol(file))
        for file in sorted(found)
        if has_suffix(file, suffixes) and not _is_skipped(PurePath(file.removeprefix(root)), exclude)
    ]
    if not urls:
        raise UserError(f"{name}: no file to read; check the address (hidden files are skipped)")
    return urls


def identity(url: str) -> str:
    """Return a text that changes with the content of a file: a hash of its properties, such as its ETag.

    Raises the errors of ``list_files``.
    """
    system, path = open_system(url)
    return str(retried(url, lambda: system.ukey(path)))


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """Yield the path of a local copy of a file, in the system's folder for temporary files.

    Raises:
        UserError: the file does not exist, or access is denied.
        HornbookError: the server cannot be reached, or the connection dropped several times.
    """
    system, path = open_system(url)
    with tempfile.TemporaryDirectory(prefix="hornbook-") as folder:
        copy = Path(folder) / PurePath(path).name

        def fetch() -> None:
            with system.open(path, "rb") as source, storage_errors("write", copy), copy.open("wb") as target:
                shutil.copyfileobj(source, target, _COPIED_BYTES)

        retried(url, fetch)
        yield copy


def _is_skipped(path: PurePath, exclude: Sequence[str]) -> bool:
    return any(part.startswith(".") for part in path.parts) or is_excluded(path, exclude)


def open_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. Raises UserError if the protocol has no library."""
    fsspec = require("fsspec", extra="remote", purpose="reading URLs")
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{url}: {reason}; install the protocol's library, or check the address") from error
    system.invalidate_cache()
    return system, str(path)


def retried(url: str, action: Callable[[], T]) -> T:
    """Return the result of an action on the server, tried up to four times, with growing pauses.

    Raises:
        UserError: the file does not exist (then caused by FileNotFoundError), or access is denied.
        HornbookError: all attempts failed.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            reason = " ".join(str(error.strerror or error).split())
            raise UserError(f"cannot read {url}: {reason}; check the address and the credentials") from error
        except network_errors() as error:
            if attempt + 1 == _ATTEMPTS:
                reason = " ".join(str(error).split())[:200]
                raise HornbookError(
                    f"cannot read {url} in {_ATTEMPTS} attempts: {reason}; check the network, and run the same command "
                    "to resume"
                ) from error
            time.sleep(_FIRST_WAIT * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def network_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of errors of a network, also those that libraries do not derive from OSError."""
    loaded = [(sys.modules.get(module), name) for module, name in _OWN_ERRORS]
    return (OSError, *(getattr(module, name) for module, name in loaded if module is not None))
