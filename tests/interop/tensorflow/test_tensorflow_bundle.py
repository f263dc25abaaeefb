"""TensorFlow's format, sound and damaged. Files of TensorFlow 2.21 itself were compared by hand."""

import math
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from damage import mutated, survive
from tiny_bundle import HEADER, contents_of, encode, entry, field, handle, table, varint, write_bundle
from tiny_huggingface import same

from hornbook.errors import CheckpointError, HornbookError
from hornbook.interop.formats.crc32c import masked_crc32c
from hornbook.interop.tensorflow import bundle as bundles
from hornbook.interop.tensorflow.bundle import open_bundle, read_variables

TENSORS = {
    "a": torch.arange(6.0).view(2, 3).bfloat16(),
    "a/lamb_m": torch.arange(6.0).view(2, 3),
    "b": torch.tensor(1 << 40),
    "c": torch.zeros(0, 4),
    "d/half": torch.tensor([0.5, -2.0]).half(),
    "d/double": torch.tensor([[math.pi]]).double(),
    "d/flags": torch.tensor([True, False, True]),
    "e": torch.tensor([-1, 7], dtype=torch.int32),
}


def read_all(index: Path) -> dict[str, torch.Tensor]:
    bundle = open_bundle(index)
    return read_variables(bundle, [name for name, variable in bundle.variables.items() if variable.dtype])


def refused(index: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_all(index)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_index(folder: Path, entries: list[tuple[bytes, bytes]], num_bytes: int = 64, **options: object) -> Path:
    """An index beside a shard of zeros."""
    (folder / "x.data-00000-of-00001").write_bytes(bytes(num_bytes))
    (folder / "x.index").write_bytes(table([(b"", HEADER), *entries], **options))
    return folder / "x.index"


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("per_block", [1, 3, 100])
def test_what_went_in_comes_out(tmp_path, num_shards, per_block):
    index = write_bundle(tmp_path / "x.ckpt", TENSORS, num_shards=num_shards, per_block=per_block)
    assert same(read_all(index), TENSORS)
    bundle = open_bundle(index)
    assert same(read_variables(bundle, ["e"]), {"e": TENSORS["e"]})
    assert [path.name for path in bundle.shards(TENSORS)] == [
        f"x.ckpt.data-{number:05d}-of-{num_shards:05d}" for number in range(num_shards)
    ]


def test_only_what_is_requested_is_read(tmp_path):
    index = write_bundle(tmp_path / "x", TENSORS, num_shards=2)
    bundle = open_bundle(index)
    (tmp_path / "x.data-00001-of-00002").unlink()
    assert read_variables(bundle, ["a"]).keys() == {"a"}
    with pytest.raises(CheckpointError, match=r"x\.data-00001-of-00002 is missing"):
        read_variables(bundle, ["a/lamb_m"])


def test_texts_are_listed_and_no_tensors(tmp_path):
    index = write_index(tmp_path, [(b"graph", entry([], 0, 60, dtype=7)), (b"w", entry([1], 60, 4, dtype=1))])
    assert open_bundle(index).variables["graph"].dtype is None


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (entry([2], 0, 12), r"of shape \[2\] has 12 bytes"),
        (entry([1 << 62, 1 << 62], 0, 12), "implausibly large"),
        (entry([0, 1 << 65], 0, 0), "implausibly large"),
        (entry([1 << 64], 0, 0), "implausibly large"),
        (field(1, 1) + field(2, field(2, field(1, 1)) * 255), "more than 254 dimensions"),
        (entry([3], 60, 12), "ends before the values of 'a'"),
        (entry([3], 1 << 62, 12), "ends before the values of 'a'"),
        (entry([3], 0, 12, crc=1), "the values of 'a' do not match their CRC"),
        (entry([3], 0, 12, shard=1), "is in shard 1 of 1"),
        (entry([3], 0, 12) + field(7, b""), "stored in slices"),
        (b"\x0b", "wire type 3"),
        (b"\x08", "a varint has no end"),
        (b"\x08" + b"\xff" * 12, "a varint has no end, or more than ten bytes"),
        (field(2, b"xxxx")[:-2], "bytes where 2 are left"),
    ],
)
def test_an_entry_with_wrong_contents(tmp_path, message, shown):
    index = write_index(tmp_path, [(b"a", message)])
    with pytest.raises(CheckpointError, match=shown):
        read_all(index)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "it has 0 shards"),
        (field(1, 1 << 40), "shards"),
        (field(1, 1) + field(2, 1), "it is big-endian"),
    ],
)
def test_a_header_that_is_not_read(tmp_path, header, message):
    (tmp_path / "x.index").write_bytes(table([(b"", header), (b"a", entry([], 0, 4))]))
    assert message in refused(tmp_path / "x.index")


def test_variables_that_share_bytes(tmp_path):
    """A thousand names for the same gigabyte."""
    index = write_index(tmp_path, [(b"a", entry([4], 0, 16)), (b"b", entry([4], 12, 16))])
    assert "two variables overlap" in refused(index)


def test_a_compressed_index(tmp_path):
    assert "its blocks are compressed (type 1)" in refused(write_bundle(tmp_path / "x", TENSORS, kind=1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: varint(9) + content, "exceeds its block"),
        (lambda content: handle(0, 1 << 60) + content, "exceeds its block"),
        (lambda content: content[:-4] + struct.pack("<I", 1 << 31), "more restarts than bytes"),
        (lambda content: content[:-8] + content, "names are not in order"),
        (lambda content: b"", "a block is outside the file"),
    ],
)
def test_a_block_with_wrong_contents(tmp_path, damage, message):
    index = write_bundle(tmp_path / "x", TENSORS, damage={1: damage})
    assert message in refused(index)


def test_a_block_that_is_named_again_and_again(tmp_path):
    """Each costs its CRC, so ten bytes of the index block could cost a second."""
    empty = contents_of([])
    again = contents_of([(bytes([n]), handle(0, len(empty))) for n in range(100)])
    (tmp_path / "x.index").write_bytes(table([(b"", HEADER)], damage={0: lambda _: empty, 1: lambda _: again}))
    assert "do not follow one another" in refused(tmp_path / "x.index")


def test_names_that_grow_with_every_byte(tmp_path):
    """An entry of four bytes stands for a name that is one longer than the one before."""
    grown = b"".join(varint(n) + varint(1) + varint(0) + b"x" for n in range(200_000)) + struct.pack("<II", 0, 1)
    started = time.process_time()
    index = write_bundle(tmp_path / "x", TENSORS, damage={0: lambda _: grown})
    assert "a name has more than 1024 bytes" in refused(index)
    assert time.process_time() - started < 5


def test_more_names_than_any_checkpoint_has(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_ENTRIES", 5)
    assert "more than 5 names" in refused(write_bundle(tmp_path / "x", TENSORS))


def test_an_index_of_more_bytes_than_any(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "_MOST_INDEX_BYTES", 100)
    assert "is larger than" in refused(write_bundle(tmp_path / "x", TENSORS))


def test_links_that_lead_elsewhere(tmp_path):
    index = write_bundle(tmp_path / "theirs" / "x", TENSORS)
    shard = tmp_path / "theirs" / "x.data-00000-of-00001"
    shard.rename(tmp_path / "secret")
    shard.symlink_to(tmp_path / "secret")
    assert "is a link out of its folder" in refused(index)


def test_every_flipped_byte_and_every_cut_of_an_index_is_seen(tmp_path):
    index = write_bundle(tmp_path / "x", TENSORS)
    data, draws = index.read_bytes(), random.Random(0)
    for place in range(len(data) - 48):
        index.write_bytes(data[:place] + bytes([data[place] ^ 1 << draws.randrange(8)]) + data[place + 1 :])
        refused(index)
    for length in range(len(data)):
        index.write_bytes(data[:length])
        refused(index)


def test_every_flipped_byte_and_every_cut_of_a_shard_is_seen(tmp_path):
    index = write_bundle(tmp_path / "x", TENSORS)
    shard = tmp_path / "x.data-00000-of-00001"
    data = shard.read_bytes()
    for place in range(len(data)):
        shard.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert "do not match their CRC" in refused(index)
        shard.write_bytes(data[:place])
        assert "ends before the values" in refused(index)


def lying_indexes(count: int) -> Iterator[bytes]:
    """Indexes of which one block was damaged before its CRC was made, the index block among them."""
    entries, _ = encode(TENSORS)
    words = [varint(1 << 35), varint((1 << 64) - 1), b"\xff" * 10, field(2, b""), handle(0, 4)]
    num_blocks = -(-len(entries) // 3) + 1
    for number in range(count):
        yield table(
            entries,
            damage={number % num_blocks: lambda content, n=number: next(iter(mutated(content, 1, n, words)))},
        )


def test_thousands_of_damaged_indexes(tmp_path):
    index = write_bundle(tmp_path / "x", TENSORS)
    sound = index.read_bytes()
    words = [field(1, 1), field(7, b""), handle(0, 1 << 40), b"\xff" * 10]

    def read(path: Path) -> dict[str, torch.Tensor]:
        return read_all(path)

    refused_raw, accepted_raw = survive(read, index, mutated(sound, 1000, 3, words), CheckpointError)
    refused_lying, accepted_lying = survive(read, index, lying_indexes(2000), CheckpointError)
    assert refused_raw + accepted_raw == 1000 and refused_raw > 900
    assert refused_lying + accepted_lying == 2000 and refused_lying > 1000


def test_hundreds_of_damaged_shards(tmp_path):
    index = write_bundle(tmp_path / "x", TENSORS)
    shard = tmp_path / "x.data-00000-of-00001"
    sound = shard.read_bytes()
    for data in mutated(sound, 500, 4):
        shard.write_bytes(data)
        try:
            assert same(read_all(index), TENSORS), "what is taken is what was stored"
        except HornbookError as error:
            assert isinstance(error, CheckpointError) and "\n" not in str(error)


def test_the_checksum_is_tensorflows():
    """The CRC of a tensor in a file that TensorFlow 2.21 wrote."""
    assert masked_crc32c(struct.pack("<6f", *range(6))) == 389_929_920
