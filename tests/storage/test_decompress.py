import bz2
import gzip
import io
import lzma
import os
import resource
import sys
import time

import pytest
import zstandard
from crashes import crashes_in_child

from hornbook.errors import DataError, PathError, StorageError, UserError
from hornbook.storage.decompress import COMPRESSED_SUFFIXES, InputMeter, Limits, open_text_source

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
TEXT = "".join(f"line {number} of a text that is not very regular: {number * number % 977}\n" for number in range(5000))
DATA = TEXT.encode()


@pytest.fixture(params=COMPRESS)
def suffix(request):
    return request.param


@pytest.fixture
def packed(tmp_path, suffix):
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](DATA))
    return path


def read_all(source, limits=None) -> bytes:
    with open_text_source(source, limits) as stream:
        return stream.read()


def fails(source, pattern: str, limits=None) -> str:
    with pytest.raises(DataError, match=pattern) as caught:
        read_all(source, limits)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_suffix_is_tried():
    assert set(COMPRESS) == set(COMPRESSED_SUFFIXES)


def test_compressed_files_are_read(packed):
    assert read_all(packed) == DATA
    assert read_all(str(packed)) == DATA


def test_lines_come_one_by_one(packed):
    with open_text_source(packed) as stream:
        assert [line.decode() for line in stream] == TEXT.splitlines(keepends=True)


def test_plain_files_are_read(tmp_path):
    for data in (b"", b"x", b"BZh and what follows is text", b"\x1f", DATA):
        (tmp_path / "text.txt").write_bytes(data)
        assert read_all(tmp_path / "text.txt") == data


def test_open_streams_are_read_and_left_open(suffix):
    for data in (DATA, COMPRESS[suffix](DATA)):
        stream = io.BytesIO(data)
        assert read_all(stream) == DATA
        assert not stream.closed


def test_the_first_bytes_count_where_the_name_promises_nothing(tmp_path, suffix):
    (tmp_path / "text").write_bytes(COMPRESS[suffix](DATA))
    assert read_all(tmp_path / "text") == DATA


def test_a_name_has_to_keep_its_promise(tmp_path, suffix):
    for data in (b"plain text", b"", COMPRESS[".gz" if suffix == ".xz" else ".xz"](DATA)):
        (tmp_path / f"text{suffix}").write_bytes(data)
        fails(tmp_path / f"text{suffix}", "by the suffix")


def test_members_one_after_the_other_are_one_text(tmp_path, suffix):
    pieces = [DATA[:1000], b"", DATA[1000:1001], DATA[1001:]]
    (tmp_path / "text").write_bytes(b"".join(map(COMPRESS[suffix], pieces)))
    assert read_all(tmp_path / "text") == DATA


@pytest.mark.parametrize("suffix", [".gz", ".xz"], indirect=True)
def test_padding_behind_the_last_member_is_passed_over(suffix):
    for padding in (4, 512, 200_000):
        assert read_all(io.BytesIO(COMPRESS[suffix](DATA) + bytes(padding))) == DATA


def test_skippable_zstd_frames_are_skipped():
    frame = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    assert read_all(io.BytesIO(frame + zstandard.compress(DATA) + frame)) == DATA


def test_garbage_after_the_last_member_is_reported(packed):
    packed.write_bytes(packed.read_bytes() + b"garbage, not a member")
    fails(packed, "offset")


def test_a_truncated_file_is_reported_with_its_offset(tmp_path, packed):
    data = packed.read_bytes()
    for size in [10, 11, 12, 100, *range(1000, len(data), 997), len(data) - 1]:
        packed.write_bytes(data[:size])
        assert fails(packed, rf"offset {size}: the \w+ data is truncated").startswith(str(packed))


def test_a_flipped_bit_is_reported_or_harmless(packed):
    data = bytearray(packed.read_bytes())
    num_told = 0
    for position in range(0, len(data), max(1, len(data) // 60)):
        data[position] ^= 16
        packed.write_bytes(data)
        data[position] ^= 16
        try:
            assert read_all(packed) == DATA  # a gzip header's time, for one
        except DataError as error:
            assert str(packed) in str(error) and "\n" not in str(error)
            num_told += 1
    assert num_told > 50


def test_a_pipe_passes_on_what_it_has(suffix):
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb") as stream:
        os.write(writable, b"hi\n")
        source = open_text_source(stream, name="standard input")
        assert source.readline() == b"hi\n"
        os.write(writable, COMPRESS[suffix](b"this is not looked into"))
        os.close(writable)
        assert source.read() == COMPRESS[suffix](b"this is not looked into")


def test_a_compressed_pipe_is_read(suffix):
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb") as stream:
        data = COMPRESS[suffix](DATA[:5000])
        for start in range(0, len(data), 7):
            os.write(writable, data[start : start + 7])
        os.close(writable)
        assert read_all(stream) == DATA[:5000]


def bomb(suffix: str, layout: str) -> bytes:
    """300 MB of one byte in one member or a few, behind some text, or in many members."""
    size, num_members = (
        (2_000_000, 150) if layout == "many" else {".zst": (300_000_000, 1)}.get(suffix, (30_000_000, 10))
    )
    members = COMPRESS[suffix](bytes(size)) * num_members
    return COMPRESS[suffix](DATA) + members if layout == "behind" else members


@pytest.mark.parametrize("layout", ["few", "behind", "many"])
def test_a_bomb_is_stopped_soon_and_in_little_memory(tmp_path, suffix, layout):
    (tmp_path / "bomb").write_bytes(bomb(suffix, layout))

    def read_bomb():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        with open_text_source(tmp_path / "bomb") as stream:
            fails_while_reading(stream)
        assert time.process_time() - start < 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10

    assert not crashes_in_child(read_bomb, "any", 1, "crash-before")


def fails_while_reading(stream) -> None:
    with pytest.raises(DataError, match="over 200 times its size"):
        while stream.read(1 << 16):
            pass


def test_text_that_packs_well_is_no_bomb(suffix):
    data = b"the same line again\n" * 40_000  # below the size from which the ratio counts
    assert read_all(io.BytesIO(COMPRESS[suffix](data))) == data


def test_the_limits_hold(suffix):
    packed = COMPRESS[suffix](DATA)
    fails(io.BytesIO(packed), "member unpacks to over", Limits(member_bytes=len(DATA) - 1))
    fails(io.BytesIO(packed), "unpacks to over 3 times", Limits(ratio=3, ratio_after=1000))
    fails(io.BytesIO(packed * 3), "more than 2 compressed members", Limits(num_members=2))
    fails(io.BytesIO(packed * 3), "of text", Limits(total_bytes=3 * len(DATA) - 1))
    fails(io.BytesIO(DATA), "of text", Limits(total_bytes=len(DATA) - 1))
    exact = Limits(member_bytes=len(DATA), num_members=3, total_bytes=3 * len(DATA))
    assert read_all(io.BytesIO(packed * 3), exact) == DATA * 3
    assert read_all(io.BytesIO(DATA * 3), exact) == DATA * 3


def test_a_huge_dictionary_is_refused():
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 512 << 20}]
    fails(io.BytesIO(lzma.compress(DATA, filters=filters)), "(?i)memory")
    params = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=params).compressobj()
    fails(io.BytesIO(frame.compress(DATA) + frame.flush()), "(?i)memory")


def test_zstd_without_its_extra_is_reported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "x.zst").write_bytes(COMPRESS[".zst"](DATA))
    with pytest.raises(UserError, match=r"hornbook\[zstd\]"):
        open_text_source(tmp_path / "x.zst")


@pytest.mark.parametrize("name", ["missing.txt", "missing/x.txt", "."])
def test_what_cannot_be_opened_is_the_users_mistake(tmp_path, name):
    with pytest.raises(UserError, match="cannot read") as caught:
        open_text_source(tmp_path / name)
    assert caught.value.exit_code == 2


def test_a_name_that_is_too_long_is_the_users_mistake(tmp_path):
    with pytest.raises(PathError, match=r"cannot read .*: File name too long"):
        open_text_source(tmp_path / ("x" * 300))


def test_a_disk_that_fails_while_reading_is_reported():
    class Failing(io.BytesIO):
        def read1(self, size=-1):
            raise OSError(5, "Input/output error")

    with pytest.raises(StorageError, match="cannot read stream: Input/output error"):
        open_text_source(Failing(b"text"))


def test_a_meter_counts_the_bytes_on_the_disk(tmp_path):
    packed = gzip.compress(b"text " * 1000)
    (tmp_path / "a.gz").write_bytes(packed)
    (tmp_path / "b").write_bytes(b"plain")
    meter = InputMeter()
    for name, size in (("a.gz", len(packed)), ("b", len(packed) + 5)):
        with open_text_source(tmp_path / name, meter=meter) as stream:
            stream.read()
        assert meter.num_bytes == size
    with open_text_source(tmp_path / "b") as stream:
        stream.read()
    assert meter.num_bytes == len(packed) + 5
