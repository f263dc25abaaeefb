"""Download of a dump of Wikipedia: resumable, verified by the published checksum, and renamed when complete.

    download_dump("en", "20260101", Path("dumps"))
        https://dumps.wikimedia.org/enwiki/20260101/enwiki-20260101-sha1sums.txt
        https://dumps.wikimedia.org/enwiki/20260101/enwiki-20260101-pages-articles-multistream.xml.bz2
    dumps/.enwiki-...xml.bz2.partial/content       resumed after a lost connection or a killed process
    dumps/enwiki-20260101-pages-articles-multistream.xml.bz2

The multistream file is used because it can be decompressed in parallel. Its checksum is SHA-1, or MD5 if there is no
SHA-1, which detects accidents, not attacks, against which ``https`` protects. The date is required, so that a corpus
can be rebuilt from the same dump.
"""

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

from hornbook.errors import DataError, HornbookError, StorageError, UserError
from hornbook.storage import make_directory
from hornbook.storage.new_files import PartialFile, discard_partial, open_partial
from hornbook.storage.system import format_bytes, free_bytes, open_regular, storage_errors
from hornbook.version import __version__

MIRROR: Final = "https://dumps.wikimedia.org"

_CHUNK: Final = 1 << 20
_TIMEOUT: Final = 60.0
_MAX_SUMS: Final = 4 << 20
_ATTEMPTS: Final = 6
_SUM_LINE: Final = re.compile(r"([0-9a-f]{32,64})\s+\*?(\S+)")
_RANGE: Final = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")
_NOTHING_BEYOND: Final = 416
_PASSING: Final = (408, 425, 429, 500, 502, 503, 504)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """The result of a download.

    Attributes:
        path: the dump.
        size: its size in bytes.
        algorithm, digest: the published checksum, which it matches.
        fetched: bytes downloaded this time; 0 if the dump was already there.
    """

    path: Path
    size: int
    algorithm: str
    digest: str
    fetched: int


_Sum = tuple[str, str]
"""The algorithm and the hexadecimal digest of a checksum."""


class _InterruptedError(HornbookError):
    """A lost connection or a busy server; the request can be retried."""


def download_dump(
    language: str,
    date: str,
    output: Path,
    *,
    mirror: str = MIRROR,
    on_progress: Callable[[int, int | None], None] = lambda done, total: None,
    pause: Callable[[float], None] = time.sleep,
) -> Downloaded:
    """Download the articles of the Wikipedia of a language.

    Args:
        language: the language code in the address of the wiki, such as ``"en"`` or ``"zh-min-nan"``.
        date: the date of the dump, such as ``"20260101"``.
        output: the folder for the dump.
        mirror: the address of the server.
        on_progress: called with the number of bytes so far, and the total if known.
        pause: waits a number of seconds before a retry.

    Raises:
        UserError: an argument is malformed, there is no such dump, or another process is downloading it.
        DataError: the file already exists and does not match the published checksum.
        HornbookError: the downloaded file does not match it, or the connection failed; trying again resumes.
    """
    wiki, folder_url = _locate(language, date, mirror)
    name = f"{wiki}-{date}-pages-articles-multistream.xml.bz2"
    published = _published_sum(folder_url, f"{wiki}-{date}", name, pause)
    make_directory(output)
    path = output / name
    if path.exists():
        if wrong := _disagreement(path, published):
            raise DataError(f"{path} exists already and is not the published file ({wrong}); remove it")
        discard_partial(path)
        return _downloaded(path, published, 0)
    with open_partial(path) as content:
        before = content.size
        _retried(partial(_fetch_once, f"{folder_url}/{name}", content, on_progress), pause, lambda: content.size)
        fetched = content.size - before
        if wrong := _disagreement(content.path, published):
            content.restart()
            raise HornbookError(f"{name}: the downloaded file is not the published one ({wrong}); download it again")
        content.commit()
    return _downloaded(path, published, fetched)


def _locate(language: str, date: str, mirror: str) -> tuple[str, str]:
    """Return the name of the wiki and the address of its dumps of a date. Raises UserError."""
    if not re.fullmatch(r"[a-z][a-z-]{1,30}", language):
        raise UserError(f"{language!r:.60} is no language code of Wikipedia; expected one such as en")
    if not re.fullmatch(r"20[0-9]{6}", date):
        raise UserError(f"{date!r:.60} is no date of a dump; expected one such as 20260101, see {MIRROR}")
    if not re.match(r"https?://[^\s/]+", mirror):
        raise UserError(f"{mirror!r:.120} is no address of a mirror; expected one such as {MIRROR}")
    wiki = f"{language.replace('-', '_')}wiki"
    return wiki, f"{mirror.rstrip('/')}/{wiki}/{date}"


def _published_sum(folder_url: str, prefix: str, name: str, pause: Callable[[float], None]) -> _Sum:
    for algorithm, length in (("sha1", 40), ("md5", 32)):
        text = _retried(partial(_read_text, f"{folder_url}/{prefix}-{algorithm}sums.txt"), pause)
        for match in _SUM_LINE.finditer(text):
            if match[2] == name and len(match[1]) == length:
                return algorithm, match[1]
    raise UserError(
        f"{folder_url} has no checksum of {name}: there is no such dump, it is not finished, or it was removed; choose "
        f"a date from {folder_url.rpartition('/')[0]}"
    )


def _read_text(url: str) -> str:
    """Download a small text; empty if there is none."""
    response = _open(url, 0)
    if response is None:
        return ""
    with response:
        text = b""
        for chunk in _chunks(response):
            text += chunk
            if len(text) > _MAX_SUMS:
                break
        return text.decode("ascii", "replace")


def _retried(action: Callable[[], T], pause: Callable[[float], None], progress: Callable[[], int] = lambda: 0) -> T:
    """Retry an action until it succeeds, or until six consecutive attempts made no progress."""
    failures, reached = 0, progress()
    while True:
        try:
            return action()
        except _InterruptedError:
            failures = 1 if progress() > reached else failures + 1
            reached = max(reached, progress())
            if failures >= _ATTEMPTS:
                raise
            pause(min(60.0, 2.0**failures))


def _fetch_once(url: str, content: PartialFile, on_progress: Callable[[int, int | None], None]) -> None:
    """Download the rest of the file after the existing content."""
    response = _open(url, content.size)
    if response is None:
        raise UserError(f"{url}: no such dump; choose another date")
    with response:
        if response.status == _NOTHING_BEYOND:  # the checksum will show whether the content is complete
            return
        total = _begin(response, content)
        if total is not None and total - content.size > free_bytes(content.path):
            needed, free = format_bytes(total - content.size), format_bytes(free_bytes(content.path))
            raise StorageError(f"{content.final} needs {needed} more, but {free} are free; choose another `output`")
        for chunk in _chunks(response):
            content.write(chunk)
            on_progress(content.size, total)
    if total is not None and content.size < total:
        raise _InterruptedError(f"{url}: the connection ended at byte {content.size} of {total}; try again")


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield data as soon as it arrives, so that a killed process has stored nearly all of it."""
    try:
        while chunk := response.read1(_CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(f"{response.url}: the connection broke ({error}); try again") from error


def _begin(response: http.client.HTTPResponse, content: PartialFile) -> int | None:
    """Prepare the content file for the response; return the length of the whole file, if the server sends it."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status == 206 and match and int(match[1]) == content.size:
        return int(match[2]) if match[2] != "*" else None
    if response.status == 206:
        content.restart()
        raise _InterruptedError(f"{response.url}: the server sent another range than requested; try again")
    content.restart()  # the server does not support ranges and sends the whole file
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _open(url: str, start: int) -> http.client.HTTPResponse | None:
    """Request a file from byte ``start`` on; None if it does not exist. Raises _InterruptedError or UserError."""
    request = urllib.request.Request(url, headers={"User-Agent": f"hornbook/{__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == _NOTHING_BEYOND and start:
            return cast(http.client.HTTPResponse, error)  # it has the same interface
        error.close()
        if error.code == 404:
            return None
        if error.code in _PASSING:
            raise _InterruptedError(f"{url}: the server answered {error.code}; try again later") from error
        raise UserError(f"{url}: the server answered {error.code} {error.reason}; check the address") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _InterruptedError(f"{url}: cannot be reached ({reason}); check the network and try again") from error
    return response


def _disagreement(path: Path, published: _Sum) -> str:
    """Return both checksums if that of a file is not the published one, else an empty string."""
    algorithm, digest = published
    with storage_errors("read", path), open_regular(path) as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    return f"{algorithm} {found}, published {digest}" if found != digest else ""


def _downloaded(path: Path, published: _Sum, fetched: int) -> Downloaded:
    algorithm, digest = published
    return Downloaded(path=path, size=path.stat().st_size, algorithm=algorithm, digest=digest, fetched=fetched)
