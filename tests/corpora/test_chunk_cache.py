import hashlib
import os

import pytest
from tiny_text import one_line

from hornbook.corpora import remote_store
from hornbook.corpora.remote_store import ChunkCache
from hornbook.errors import StorageError


def chunk(number, size=100):
    data = number.to_bytes(4, "big") * (size // 4)
    return hashlib.sha256(data).digest(), data


def test_what_is_put_is_got_also_by_another_process(tmp_path):
    digest, data = chunk(1)
    cache = ChunkCache(tmp_path / "chunks", 1 << 20)
    assert cache.get(digest) is None
    cache.put(digest, data)
    assert cache.get(digest) == data == ChunkCache(tmp_path / "chunks", 1 << 20).get(digest)
    assert [path.name for path in (tmp_path / "chunks" / digest.hex()[:2]).iterdir()] == [digest.hex()]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"x" + data[1:], lambda data: b""])
def test_a_damaged_chunk_is_none_and_can_be_put_again(tmp_path, damage):
    digest, data = chunk(1)
    cache = ChunkCache(tmp_path, 1 << 20)
    cache.put(digest, data)
    path = tmp_path / digest.hex()[:2] / digest.hex()
    path.write_bytes(damage(data))
    assert cache.get(digest) is None
    cache.put(digest, data)
    assert cache.get(digest) == data


def test_the_chunks_used_longest_ago_make_room(tmp_path):
    cache, chunks = ChunkCache(tmp_path, 3200), [chunk(number) for number in range(30)]
    for age, (digest, data) in enumerate(chunks):
        cache.put(digest, data)
        os.utime(tmp_path / digest.hex()[:2] / digest.hex(), (age, age))
    assert cache.get(chunks[0][0])  # which makes it the latest
    for number in range(100, 103):
        cache.put(*chunk(number))
    kept = [number for number, (digest, _) in enumerate(chunks) if cache.get(digest)]
    assert kept[0] == 0 and kept[1] > 1 and kept[1:] == list(range(kept[1], 30))


def test_several_caches_stay_near_the_limit(tmp_path):
    caches = [ChunkCache(tmp_path, 3200) for _ in range(3)]
    for number in range(300):
        caches[number % 3].put(*chunk(number))
    size = sum(path.stat().st_size for path in tmp_path.glob("??/*"))
    assert 3200 // 2 < size <= 3200 + 3 * 3200 // 16


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path, data):
        path.touch()
        raise OSError(28, "No space left on device")

    cache = ChunkCache(tmp_path, 1 << 20)
    monkeypatch.setattr(remote_store.Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        cache.put(*chunk(1))
    assert one_line(caught.value, "free some space")
    assert not list(tmp_path.glob("??/*"))
