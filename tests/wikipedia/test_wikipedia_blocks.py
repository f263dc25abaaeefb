import bz2
import gzip
import io
import lzma
import random
import resource
import sys
import threading

import pytest
from tiny_text import one_line
from tiny_wiki import dump, many_pages

from hornbook.errors import DataError, UserError
from hornbook.wikipedia import blocks
from hornbook.wikipedia.blocks import read_blocks

DATA = dump(many_pages(400))


def streams(data, size):
    """bzip2 data of several streams, cut anywhere, as pbzip2 cuts."""
    return b"".join(bz2.compress(data[start : start + size]) for start in range(0, len(data), size))


def read(path, threads):
    found = list(read_blocks(str(path), threads))
    assert all(0 < len(block) <= 256 << 10 for block in found)
    return b"".join(found)


@pytest.fixture
def small_sections(monkeypatch):
    """Sections of some hundred bytes, so that small files have many."""
    monkeypatch.setattr(blocks, "_PIECE", 300)
    monkeypatch.setattr(blocks, "_MOST_AHEAD", 256 << 10)
    monkeypatch.setattr(blocks, "_LONG_STREAM", 3000)


@pytest.mark.parametrize("threads", [1, 2, 9])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2"])
def test_every_packing_gives_the_same_bytes(tmp_path, threads, suffix):
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": lambda data: streams(data, 4000)}[suffix]
    path = tmp_path / f"dump.xml{suffix}"
    path.write_bytes(pack(DATA))
    assert read(path, threads) == DATA


@pytest.mark.parametrize("size", [100, 1000, 30_000, len(DATA)])
def test_streams_of_any_length_in_their_order(tmp_path, small_sections, size):
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(streams(DATA, size))
    assert read(path, 3) == DATA


def test_a_short_stream_then_one_that_does_not_end(tmp_path, small_sections):
    path = tmp_path / "dump.xml.bz2"
    noise = random.Random(1).randbytes(40_000)
    path.write_bytes(streams(DATA, 2000) + bz2.compress(noise) + streams(DATA, 2000))
    assert read(path, 2) == DATA + noise + DATA


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(streams(DATA, 4000))))
    assert b"".join(read_blocks("-", 2)) == DATA


def test_a_reader_that_disconnected_delays_nothing(tmp_path, small_sections):
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(streams(DATA, 1000))
    reading = read_blocks(str(path), 3)
    next(reading)
    reading.close()
    for thread in threading.enumerate():
        if thread.name.startswith("hornbook-bzip2"):
            thread.join(5)
            assert not thread.is_alive()


def read_until_damage(path, threads):
    """The bytes before an error, and its message."""
    found = []
    try:
        for block in read_blocks(str(path), threads):
            found.append(block)
    except DataError as error:
        return b"".join(found), str(error)
    return b"".join(found), ""


@pytest.mark.parametrize("sections", ["small", "large"])
def test_damage_ends_any_number_of_threads_at_the_same_byte(tmp_path, request, sections):
    if sections == "small":
        request.getfixturevalue("small_sections")
    generator = random.Random(20261121)
    path = tmp_path / "dump.xml.bz2"
    whole = streams(dump(many_pages(1500)), 20_000)
    kept = set()
    for _ in range(20):
        data = bytearray(whole)
        place = generator.randrange(len(data) // 2, len(data))
        data[place] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        found, message = read_until_damage(path, 1)
        assert (found, message) == read_until_damage(path, 2) == read_until_damage(path, 3)
        assert f"{path}: offset " in message or not message
        kept.add(len(found))
    assert max(kept) > 0


@pytest.mark.parametrize("threads", [1, 3])
def test_damage_is_one_line(tmp_path, small_sections, threads):
    path = tmp_path / "dump.xml.bz2"
    whole = streams(DATA, 2000)
    for data in (whole[:-5], whole[:2000] + b"\0\0\0" + whole[2003:], whole + b"garbage", b"plain"):
        path.write_bytes(data)
        with pytest.raises(DataError) as caught:
            read(path, threads)
        assert one_line(caught.value, str(path))
    with pytest.raises(UserError, match="no-such"):
        read(tmp_path / "no-such", threads)


def test_mutated_files_raise_data_errors_alone(tmp_path, small_sections):
    generator = random.Random(20260102)
    path = tmp_path / "dump.xml.bz2"
    whole = streams(DATA[:6000], 1500)
    outcomes = set()
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(generator.choice((1, 1, 2, 5))):
            start = generator.randrange(len(data))
            if generator.random() < 0.5:
                data[start] ^= 1 << generator.randrange(8)
            elif generator.random() < 0.5:
                del data[start : start + generator.randrange(300)]
            else:
                data[start:start] = generator.choice((b"BZh91AY&SY", b"\0", whole[:50]))
        path.write_bytes(data)
        try:
            read(path, 2)
            outcomes.add("read")
        except DataError as error:
            assert one_line(error, str(path))
            outcomes.add("refused")
    assert "refused" in outcomes


def test_bombs_are_refused_in_little_memory(tmp_path):
    """Four streams that unpack to 400 MB each."""
    path = tmp_path / "dump.xml.bz2"
    packer = bz2.BZ2Compressor()
    stream = b"".join(packer.compress(bytes(1 << 20)) for _ in range(400)) + packer.flush()
    path.write_bytes(stream * 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="unpacks to over 200 times its size"):
        read(path, 4)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
