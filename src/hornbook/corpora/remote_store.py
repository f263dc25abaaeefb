"""Token stores on other storage systems, by the URLs of fsspec, read through a cache on this machine.

    s3://bucket/corpora/mine/                     build.json            compared each time the corpus is opened
        train/                                    manifest.json         likewise
            tokens.idx  .sha256  tokenizer.json                         copied, and compared with the manifest's hashes
            documents.npy                                               likewise, when first needed
            tokens.bin                                                  chunks of 64 KiB, when first needed
    CACHE/stores/s3/bucket/corpora/mine/          the copies
    CACHE/chunks/3f/3fa94c...                     the chunk whose SHA-256 is 3fa94c..., last used at its change

The rest of hornbook opens the folder of copies as a store whose tokens are `RemoteTokens`, so samples and their order
are those of a local store, and a run may move between the two. A reader that announces what it will read has it fetched
by several threads at once. The trade-off of the chunk size: a window of 1,024 tokens is 2 KiB, so random windows of a
store that does not fit in the cache transfer 66 bytes per token; smaller chunks would need as many requests, and more
hashes.

Any number of processes share the chunks. A chunk is written beside its place and renamed, and its hash is compared
whenever it is read, so neither a killed process nor a damaged disk can give wrong tokens. Each process counts what it
adds; after a sixteenth of the limit, it removes the chunks that were not used for the longest time. The price: several
processes may together exceed the limit by a sixteenth each, and each read costs a hash, about 50 us.

An attempt that fails, or is silent for a minute, is repeated three times after growing pauses.
"""

import hashlib
import os
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Integers
from hornbook.config.sections import CacheOptions
from hornbook.corpora.folders import BUILD, CHUNK_BYTES, CHUNK_HASHES, MANIFEST, Manifest
from hornbook.errors import DataError, HornbookError, UserError
from hornbook.storage import Written, make_directory, remove_file, replace_file, sha256_file, temporary_beside
from hornbook.storage.system import cache_home, storage_errors, wait_for_lock
from hornbook.text.remote import network_errors, open_system, retried

_PARTS: Final = 16
_THREADS: Final = 16
_AHEAD: Final = 64
"""The most chunks that are fetched but not yet read, 4 MiB."""
_KEPT: Final = 256
"""The chunks in memory, 16 MiB: neighboring windows of an evaluation share them."""
_PATIENCE: Final = 60.0
_COPIED_BYTES: Final = 8 << 20


class ChunkCache:
    """See the module.

    Args:
        folder: of the chunks; created if missing.
        limit: bytes of all chunks together.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._added = limit  # what other processes left is counted before the first addition
        make_directory(folder)

    def get(self, digest: bytes) -> bytes | None:
        """Return the chunk with this SHA-256, marked as used now; None if it is missing or damaged."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:  # removed by another process, or the disk failed: it is fetched again
            return None
        return data if hashlib.sha256(data).digest() == digest else None

    def put(self, digest: bytes, data: bytes) -> None:
        """Add a chunk, after making room if necessary."""
        if self._added + len(data) > self._limit // _PARTS:
            with wait_for_lock(self._folder / "lock"):
                self._shrink()
            self._added = 0
        path = self._path(digest)
        temporary = temporary_beside(path)
        try:
            with storage_errors("write", path, needed=len(data)):
                path.parent.mkdir(exist_ok=True)
                temporary.write_bytes(data)
                temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self._added += len(data)

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / name

    def _shrink(self) -> None:
        """Remove the chunks used longest ago until a sixteenth of the limit is free."""
        found = []
        with storage_errors("read the folder", self._folder):
            for folder in self._folder.iterdir():
                for path in folder.iterdir() if folder.is_dir() else ():
                    with suppress(FileNotFoundError):
                        status = path.stat()
                        found.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in found) - (self._limit - self._limit // _PARTS)
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            with storage_errors("remove", path):
                path.unlink(missing_ok=True)
            excess -= size


class _OtherContentError(OSError):
    """A chunk has not its hash: the transfer or the file is damaged, or the file was replaced."""


class RemoteCorpus:
    """The copies of a corpus or a store. Opening it copies the records, which are small.

    Attributes:
        url: the URL.
        folder: the local folder of copies.
        options: of the cache.

    Raises:
        DataError: there is no store at the URL.
        UserError: access is denied, or a library is missing.
        HornbookError: the server cannot be reached.
    """

    def __init__(self, url: str, options: CacheOptions) -> None:
        try:
            self.root = Path(options.folder) if options.folder else cache_home()
        except RuntimeError as error:
            raise UserError("the home folder is unknown; set `data.cache` to a folder for remote data") from error
        self.url, self.options = url.rstrip("/"), options
        scheme, _, rest = self.url.partition("://")
        parts = [part for part in PurePosixPath(rest).parts if part not in ("/", "..")]
        self.folder = self.root.joinpath("stores", scheme, *parts)
        names = (MANIFEST, BUILD, f"train/{MANIFEST}", f"validation/{MANIFEST}")
        if not sum([self._copy_record(name) for name in names]):
            raise DataError(f"{url}: no token store there; expected a folder written by corpus build")

    def _copy_record(self, name: str) -> bool:
        """Copy a record if it differs from the copy; return whether it exists."""
        path, url = self.folder / name, f"{self.url}/{name}"
        system, there = open_system(url)
        try:
            data: bytes = retried(url, partial(system.cat_file, there))
        except UserError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if path.exists():
                remove_file(path)
            return False
        make_directory(path.parent)
        if not path.is_file() or path.read_bytes() != data:
            replace_file(path, data)
        return True

    def store(self, folder: Path) -> "RemoteStore":
        """Return the remote store whose copies are in ``folder``, which is the corpus or below it."""
        below = folder.relative_to(self.folder).as_posix()
        return RemoteStore(self.url if below == "." else f"{self.url}/{below}", folder, self.root, self.options.limit)


class RemoteStore:
    """A store with a manifest at a URL.

    Args:
        url: of its folder.
        folder: of the copies, which has the manifest.
        root: the folder of the cache.
        limit: the most bytes of chunks.
    """

    def __init__(self, url: str, folder: Path, root: Path, limit: int) -> None:
        self.url, self.folder, self.limit = url, folder, limit
        self._root = root

    def copy(self, name: str, expected: Written) -> Path:
        """Return the path of a copy of a file with this hash, fetched unless it is there.

        Raises:
            DataError: the file at the URL has another content.
            HornbookError: the server cannot be reached.
        """
        path, url = self.folder / name, f"{self.url}/{name}"
        with wait_for_lock(self.folder / "lock"):
            if path.is_file() and path.stat().st_size == expected.size and sha256_file(path) == expected.sha256:
                return path
            system, there = open_system(url)

            def fetch() -> Written:
                with system.open(there, "rb") as source:
                    return replace_file(path, iter(partial(source.read, _COPIED_BYTES), b""))

            if retried(url, fetch) != expected:
                remove_file(path)
                raise DataError(
                    f"{url} is not the file of the store's manifest: the store is damaged, or was replaced just now; "
                    "start again, or upload the store again"
                )
        return path

    def tokens(self, manifest: Manifest) -> "RemoteTokens":
        """Return the tokens. Raises DataError if the store has no hashes of chunks."""
        if manifest.chunk_hashes is None:
            raise DataError(
                f"{self.url}: the store has no {CHUNK_HASHES}, by which its parts are checked, since an earlier "
                "version wrote it: copy it to this machine, or build it again"
            )
        size, path = manifest.files["tokens.bin"].size, self.copy(CHUNK_HASHES, manifest.chunk_hashes)
        if manifest.chunk_hashes.size != -(-size // CHUNK_BYTES) * hashlib.sha256().digest_size:
            raise DataError(f"{self.url}: {CHUNK_HASHES} does not fit tokens.bin; build the store again")
        hashes = np.memmap(path, np.uint8, "r").reshape(-1, 32) if size else np.empty((0, 32), np.uint8)
        cache = ChunkCache(self._root / "chunks", self.limit)
        return RemoteTokens(f"{self.url}/tokens.bin", np.dtype(manifest.dtype).newbyteorder("<"), size, hashes, cache)


class RemoteTokens:
    """The tokens of a remote ``tokens.bin``, with the part of an array's interface that `IndexedFile` uses.

    ``tokens[start:end]`` returns an array; threads and forked processes may share the object.

    Args:
        url: of the file.
        dtype: of the tokens.
        nbytes: size of the file in bytes.
        hashes: uint8[num_chunks, 32], the SHA-256 of each chunk.
        cache: where chunks are kept.
    """

    def __init__(
        self, url: str, dtype: np.dtype[Any], nbytes: int, hashes: NDArray[np.uint8], cache: ChunkCache
    ) -> None:
        self.url, self.dtype, self.nbytes, self.itemsize = url, dtype, nbytes, dtype.itemsize
        self._hashes, self._cache = hashes, cache
        self._begin()

    def _begin(self) -> None:
        """Start without threads and requests, as in a forked process, which has none."""
        self._pid, self._lock = os.getpid(), threading.RLock()
        self._announced: deque[int] = deque()
        self._pending: dict[int, Future[bytes]] = {}
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._requests: queue.SimpleQueue[tuple[int, Future[bytes]]] = queue.SimpleQueue()
        self._num_threads = 0

    def __len__(self) -> int:
        return self.nbytes // self.itemsize

    def __getitem__(self, which: slice | Integers) -> Integers:
        if not isinstance(which, slice):
            return np.concatenate([np.empty(0, self.dtype), *(self[item : item + 1] for item in which.tolist())])
        start, end, _ = which.indices(len(self))
        first, last = start * self.itemsize, max(start, end) * self.itemsize
        numbers = range(first // CHUNK_BYTES, -(-last // CHUNK_BYTES)) if last > first else ()
        data = b"".join(self._chunk(number) for number in numbers)
        return np.frombuffer(data, self.dtype, (last - first) // self.itemsize, first % CHUNK_BYTES if data else 0)

    def will_read(self, spans: Iterable[tuple[int, int]]) -> None:
        """Fetch the chunks of these tokens, (start, end) in the order of reading, ahead of the reader.

        What an earlier call announced is fetched only when it is read.
        """
        with self._own_lock():
            chunks = (
                range(start * self.itemsize // CHUNK_BYTES, -(-end * self.itemsize // CHUNK_BYTES))
                for start, end in spans
            )
            wanted = dict.fromkeys(chain.from_iterable(chunks))
            self._announced = deque(wanted)
            self._pending = {number: future for number, future in self._pending.items() if number in wanted}
            self._fetch_ahead()

    def _own_lock(self) -> Any:
        if self._pid != os.getpid():
            self._begin()
        return self._lock

    def _fetch_ahead(self) -> None:
        while self._announced and len(self._pending) < _AHEAD:
            number = self._announced.popleft()
            if number not in self._recent and number not in self._pending:
                self._request(number)

    def _request(self, number: int) -> "Future[bytes]":
        if self._num_threads < _THREADS:
            self._num_threads += 1
            # Daemons, since a thread that waits for a silent server must not keep the process from ending.
            threading.Thread(target=self._work, args=(self._requests,), name="hornbook-fetch", daemon=True).start()
        future: Future[bytes] = Future()
        self._pending[number] = future
        self._requests.put((number, future))
        return future

    def _work(self, requests: "queue.SimpleQueue[tuple[int, Future[bytes]]]") -> None:
        while True:
            number, future = requests.get()
            failures: tuple[type[BaseException], ...] = (*network_errors(), HornbookError)
            try:
                future.set_result(self._load(number))
            except failures as error:  # raised by the reader
                future.set_exception(error)
            except BaseException as error:  # a bug, which the reader raises, too
                future.set_exception(error)
                raise

    def _chunk(self, number: int) -> bytes:
        """Return a chunk from memory, from what was fetched ahead, from the disk or from the server."""
        with self._own_lock():
            if (data := self._recent.get(number)) is not None:
                self._recent.move_to_end(number)
                return data

            def attempt() -> bytes:
                future = self._pending.get(number) or self._request(number)
                try:
                    return future.result(timeout=_PATIENCE)
                except TimeoutError as error:
                    if future.done():
                        raise
                    self._num_threads -= 1  # one of them waits for the server, so there may be another
                    raise OSError(f"no answer in {_PATIENCE:g} s") from error
                finally:
                    self._pending.pop(number, None)

            try:
                data = self._recent[number] = retried(self.url, attempt)
            except HornbookError as error:
                if isinstance(error.__cause__, _OtherContentError):
                    raise DataError(f"{self.url}: {error.__cause__}; upload the store again") from error
                raise
            if len(self._recent) > _KEPT:
                self._recent.popitem(last=False)
            self._fetch_ahead()
            return data

    def _load(self, number: int) -> bytes:
        """Return a chunk from the disk or the server; one attempt."""
        digest = self._hashes[number].tobytes()
        if (data := self._cache.get(digest)) is not None:
            return data
        start = number * CHUNK_BYTES
        end = min(start + CHUNK_BYTES, self.nbytes)
        system, path = open_system(self.url)
        data = bytes(system.cat_file(path, start=start, end=end))
        if hashlib.sha256(data).digest() != digest:
            raise _OtherContentError(f"bytes {start} to {end - 1} do not have the hash in {CHUNK_HASHES}")
        self._cache.put(digest, data)
        return data
