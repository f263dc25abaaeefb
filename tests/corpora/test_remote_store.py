"""Stores at URLs, in a file system of fsspec in memory, which can be made to fail."""

import contextlib
import multiprocessing
import threading
import uuid

import numpy as np
import pytest
from tiny_text import build_tiny, one_line

from hornbook.config.sections import CacheOptions
from hornbook.corpora import remote_store
from hornbook.corpora.folders import CHUNK_HASHES, write_chunk_hashes
from hornbook.corpora.inspection import describe_store, verify_store
from hornbook.corpora.remote_store import ChunkCache, RemoteTokens
from hornbook.corpora.store import folder_of, open_held_out, open_store
from hornbook.errors import DataError, HornbookError
from hornbook.samples.windows import Windows
from hornbook.text import remote

fsspec = pytest.importorskip("fsspec")


class Bucket:
    """A corpus in memory, whose reads of parts can fail, be silent, or have other bytes."""

    def __init__(self, local, monkeypatch):
        self.system, self.url = fsspec.filesystem("memory"), f"memory://{uuid.uuid4().hex}"
        self.reads, self.fault, self.waits = [], None, []
        for path in local.rglob("*"):
            if path.is_file():
                self.system.pipe(f"{self.url}/{path.relative_to(local)}", path.read_bytes())
        whole = type(self.system).cat_file

        def cat_file(system, path, start=None, end=None, **options):
            if start is not None:
                self.reads.append(start)
                if self.fault and (data := self.fault()) is not None:
                    return data
            return whole(system, path, start=start, end=end, **options)

        monkeypatch.setattr(type(self.system), "cat_file", cat_file)
        monkeypatch.setattr(remote.time, "sleep", self.waits.append)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local") / "corpus"
    build_tiny(folder)
    return folder


@pytest.fixture
def bucket(local, monkeypatch):
    monkeypatch.setattr(remote_store, "CHUNK_BYTES", 1 << 16)
    made = Bucket(local, monkeypatch)
    yield made
    with contextlib.suppress(FileNotFoundError):
        made.system.rm(made.url, recursive=True)


@pytest.fixture
def cache(tmp_path):
    return CacheOptions(str(tmp_path / "cache"))


def test_a_store_at_a_url_is_the_local_one(local, bucket, cache):
    for split in ("train", "validation"):
        near, far = open_store(local, split), open_store(bucket.url, split, cache)
        assert far.fingerprint == near.fingerprint and far.name == f"{bucket.url}/{split}"
        assert far.tokenizer().digest == near.tokenizer().digest
        for number in range(near.num_documents):
            assert np.array_equal(far.document(number), near.document(number))
        described = describe_store(far, 3)
        assert described | {"store": ""} == describe_store(near, 3) | {"store": ""}
        samples = np.arange(50)
        one, other = (Windows(store, 16, 3).batch(samples) for store in (near, far))
        assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.documents, other.documents)
    assert open_store(f"{bucket.url}/validation", cache=cache).fingerprint == near.fingerprint
    assert [store.name for store in open_held_out([bucket.url], cache)] == [f"{bucket.url}/validation"]


def test_what_is_cached_is_not_fetched_again_and_damage_on_the_disk_is(local, bucket, cache, tmp_path):
    expected = open_store(local).document(3)
    assert np.array_equal(open_store(bucket.url, cache=cache).document(3), expected) and bucket.reads == [0]
    assert np.array_equal(open_store(bucket.url, cache=cache).document(3), expected) and bucket.reads == [0]
    (chunk,) = (tmp_path / "cache" / "chunks").glob("??/*")
    chunk.write_bytes(b"damaged")
    assert np.array_equal(open_store(bucket.url, cache=cache).document(3), expected) and bucket.reads == [0, 0]
    for name in ("tokens.idx", CHUNK_HASHES, "tokenizer.json", "documents.npy"):
        path = folder_of(bucket.url, cache) / "train" / name
        store = open_store(bucket.url, cache=cache)
        assert store.rows is not None and store.tokenizer()
        del store
        path.write_bytes(b"damaged")
        assert np.array_equal(open_store(bucket.url, cache=cache).document(3), expected)


def test_verify_reads_every_chunk(bucket, cache, monkeypatch):
    monkeypatch.setattr(remote_store, "cache_home", lambda: remote_store.Path(cache.folder))
    assert verify_store(bucket.url).store == f"{bucket.url}/train" and bucket.reads == [0]


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    """Tokens of 40 chunks and a bit, of 4 KiB each, in memory."""
    monkeypatch.setattr(remote_store, "CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr("hornbook.corpora.folders.CHUNK_BYTES", 1 << 12)
    expected = np.arange(40 * 2048 + 7, dtype="<u2")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "tokens.bin").write_bytes(expected.tobytes())
    write_chunk_hashes(tmp_path / "corpus")
    hashes = np.fromfile(tmp_path / "corpus" / CHUNK_HASHES, np.uint8).reshape(-1, 32)
    assert len(hashes) == 41
    bucket = Bucket(tmp_path / "corpus", monkeypatch)

    def opened(limit=1 << 20):
        cache = ChunkCache(tmp_path / "chunks", limit)
        return RemoteTokens(f"{bucket.url}/tokens.bin", expected.dtype, expected.nbytes, hashes, cache)

    return bucket, opened, expected


def test_slices_are_those_of_an_array(tokens):
    _, opened, expected = tokens
    found, random = opened(), np.random.default_rng(0)
    for start, end in [
        (0, 0),
        (0, 1),
        (2047, 2049),
        (len(expected) - 1, len(expected)),
        *random.integers(0, 90000, (50, 2)),
    ]:
        assert np.array_equal(found[start:end], expected[start:end]), (start, end)
    assert np.array_equal(found[np.array([5, 70000])], expected[[5, 70000]])
    assert (len(found), found.nbytes, found.dtype) == (len(expected), expected.nbytes, expected.dtype)


def test_announced_chunks_are_fetched_once_and_at_the_same_time(tokens):
    bucket, opened, expected = tokens
    found, together = opened(), threading.Barrier(16, timeout=20)

    def wait():
        together.wait()  # until sixteen requests wait

    bucket.fault = wait
    spans = [(number * 2048, number * 2048 + 100) for number in random_order(32)]
    found.will_read([*spans, *spans])
    for start, end in [*spans, *spans]:
        assert np.array_equal(found[start:end], expected[start:end])
    assert sorted(bucket.reads) == [number * 4096 for number in range(32)]


def random_order(count):
    return np.random.default_rng(1).permutation(count).tolist()


def test_announcements_that_nobody_reads_do_not_stop_later_ones(tokens):
    _, opened, expected = tokens
    found = opened()
    for _ in range(5):
        found.will_read([(0, len(expected))])
    found.will_read([(70000, 70001)])
    assert np.array_equal(found[0 : len(expected)], expected)


def test_a_network_that_drops_is_tried_again_and_then_one_line(tokens):
    bucket, opened, expected = tokens
    failures = [OSError(104, "Connection reset by peer")] * 3

    def drop():
        if failures:
            raise failures.pop()

    bucket.fault, found = drop, opened()
    assert np.array_equal(found[0:9], expected[0:9]) and bucket.waits == [0.5, 1.0, 2.0]
    failures += [OSError(104, "Connection reset by peer")] * 4
    with pytest.raises(HornbookError) as caught:
        found[40000:40001]
    assert one_line(caught.value, "tokens.bin in 4 attempts: ", "Connection reset", "to resume")
    assert caught.value.exit_code == 1
    assert np.array_equal(found[40000:40001], expected[40000:40001])  # the network is back


def test_a_silent_server_is_one_line(tokens, monkeypatch):
    bucket, opened, _ = tokens
    monkeypatch.setattr(remote_store, "_PATIENCE", 0.05)
    silence = threading.Event()
    bucket.fault, found = (lambda: None if silence.wait() else b""), opened()
    with pytest.raises(HornbookError) as caught:
        found[0:1]
    silence.set()
    assert one_line(caught.value, "no answer in 0.05 s") and caught.value.exit_code == 1


def test_bytes_cut_off_in_transfer_are_fetched_again_and_other_bytes_are_refused(tokens):
    bucket, opened, expected = tokens
    short = [b"short"] * 3
    bucket.fault = lambda: short.pop() if short else None
    assert np.array_equal(opened()[0:9], expected[0:9])
    bucket.fault = lambda: b"\0" * 4096
    with pytest.raises(DataError) as caught:
        opened()[2048:2049]
    assert (
        one_line(caught.value, "tokens.bin: bytes 4096 to 8191 do not have the hash", "upload")
        and caught.value.exit_code == 2
    )


def _first(found, connection):
    connection.send(int(found[70000:70001][0]))


def test_a_forked_process_fetches_by_itself(tokens):
    _, opened, expected = tokens
    found = opened()
    found[0:1]
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_first, args=(found, there))
    process.start()
    assert here.poll(60) and here.recv() == expected[70000]
    process.join()


def test_a_small_cache_and_a_small_memory_are_enough(tokens, monkeypatch, tmp_path):
    _, opened, expected = tokens
    monkeypatch.setattr(remote_store, "_KEPT", 2)
    found = opened(limit=5 << 12)
    for number in random_order(41):
        assert np.array_equal(found[number * 2048 : number * 2048 + 5], expected[number * 2048 : number * 2048 + 5])
    assert sum(path.stat().st_size for path in (tmp_path / "chunks").glob("??/*")) <= 6 << 12


def test_what_is_missing_or_replaced_is_one_line(local, bucket, cache):
    with pytest.raises(DataError) as caught:
        open_store(f"{bucket.url}/none", cache=cache)
    assert one_line(caught.value, "none: no token store there; expected a folder written by corpus build")
    bucket.system.pipe(f"{bucket.url}/train/tokens.idx", b"other")
    with pytest.raises(DataError) as caught:
        open_store(bucket.url, cache=cache)
    assert one_line(caught.value, "tokens.idx is not the file of the store's manifest", "start again")
    bucket.system.rm(f"{bucket.url}/validation", recursive=True)
    with pytest.raises(DataError) as caught:
        open_store(bucket.url, "validation", cache)
    assert one_line(caught.value, "is missing, but the corpus was built with a validation split")
