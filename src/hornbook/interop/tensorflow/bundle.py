"""Read TensorFlow checkpoints of format 2, as written by a Saver or ``tf.train.Checkpoint``, without TensorFlow.

::

    bert_model.ckpt.index                   a table: name -> dtype, shape, shard, offset, size, CRC
    bert_model.ckpt.data-00000-of-00002     the shards: tensors one after the other, little-endian
    bert_model.ckpt.data-00001-of-00002

    open_bundle(index)             -> Bundle, from the index alone
    read_variables(bundle, names)  -> {name: tensor}

The only other reader is TensorFlow itself, of 600 MB; the package that has the name was abandoned in 2023. This reader
implements the messages BundleHeaderProto and BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto). Every
length is checked before memory is allocated, tensors must not overlap, and each CRC is verified. The price: sliced
variables are not supported, and the CRC takes a second for 300 MB.

The index is one of LevelDB's sorted tables (https://github.com/google/leveldb/blob/main/doc/table_format.md):

    blocks of entries, index block, footer          the index block has the location of each block
    footer, 48 bytes                                handles of two blocks, zeros, the magic number
    block                                           entries, restarts u32[n], n u32; kind u8, masked CRC-32C u32
    entry                                           shared, own, size: varints; the key's remaining bytes; the value

A key is the prefix shared with the previous key plus its own bytes. Blocks must follow one another, keys must ascend,
and the size and number of keys are limited, since a few bytes could expand to very many. Compressed blocks, which
TensorFlow does not write by default, are not supported.
"""

import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from hornbook.errors import CheckpointError, DataError
from hornbook.exchange.contents import inside
from hornbook.interop.formats.crc32c import masked_crc32c
from hornbook.interop.formats.protobuf import DELIMITED, VARINT, Malformed, read_fields, read_varint
from hornbook.storage.json_files import read_bytes
from hornbook.storage.system import open_regular, storage_errors

_MOST_INDEX_BYTES: Final = 16 << 20
_MOST_SHARDS: Final = 99_999
_MOST_DIMENSIONS: Final = 254
_MOST_ELEMENTS: Final = 1 << 40
_DTYPES: Final = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    4: torch.uint8,
    5: torch.int16,
    6: torch.int8,
    9: torch.int64,
    10: torch.bool,
    14: torch.bfloat16,
    19: torch.float16,
}
MOST_ENTRIES: Final = 100_000
LONGEST_KEY: Final = 1024
_MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER: Final = 48
_TRAILER: Final = struct.Struct("<BI")


class Variable(NamedTuple):
    """A variable and the location of its values; ``dtype`` is None for types without a tensor, such as strings."""

    dtype: torch.dtype | None
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A checkpoint whose index was read.

    Attributes:
        index: its ``.index`` file, next to the shards.
        num_shards: number of shards.
        variables: variables by name.
    """

    index: Path
    num_shards: int
    variables: Mapping[str, Variable]

    def shards(self, names: Iterable[str]) -> list[Path]:
        """Return the files with the values of variables.

        Raises CheckpointError if one is missing, or a link that leaves the folder.
        """
        return [self.shard(number) for number in sorted({self.variables[name].shard for name in names})]

    def shard(self, number: int) -> Path:
        """Return one file; see ``shards`` for errors."""
        name = f"{self.index.stem}.data-{number:05d}-of-{self.num_shards:05d}"
        return inside(self.index.parent, name)


def open_bundle(index: Path) -> Bundle:
    """Read the index of a checkpoint.

    Raises CheckpointError if it is malformed or damaged, or uses an unsupported feature.
    """
    path = inside(index.parent, index.name)
    try:
        entries = read_table(read_bytes(path, "the index of a checkpoint", limit=_MOST_INDEX_BYTES))
        num_shards = _num_shards(entries.pop(b"", b""))
        variables = {key.decode("utf-8", "backslashreplace"): _variable(value) for key, value in entries.items()}
        _refuse_overlaps(variables.values(), num_shards)
    except Malformed as error:
        raise _unsound(index, str(error)) from error
    except DataError as error:
        raise CheckpointError(str(error)) from error
    return Bundle(index=index, num_shards=num_shards, variables=variables)


def read_variables(bundle: Bundle, names: Collection[str]) -> dict[str, Tensor]:
    """Return variables by name, in their dtype and shape.

    Raises CheckpointError if a shard is missing, too short or damaged.
    """
    by_shard: dict[int, list[str]] = {}
    for name in names:
        by_shard.setdefault(bundle.variables[name].shard, []).append(name)
    tensors: dict[str, Tensor] = {}
    for number, there in sorted(by_shard.items()):
        path = bundle.shard(number)
        with storage_errors("read", path), open_regular(path) as file:
            available = file.seek(0, 2)
            for name in sorted(there, key=lambda name: bundle.variables[name].offset):
                variable = bundle.variables[name]
                assert variable.dtype is not None, "the caller asks for tensors"
                if variable.offset + variable.size > available:
                    raise _unsound(bundle.index, f"{path.name} ends before the values of {name!r:.120}")
                file.seek(variable.offset)
                data = bytearray(variable.size)
                if file.readinto(data) < variable.size or masked_crc32c(data) != variable.crc:
                    raise _unsound(bundle.index, f"the values of {name!r:.120} do not match their CRC")
                flat = torch.frombuffer(data, dtype=variable.dtype) if data else torch.empty(0, dtype=variable.dtype)
                tensors[name] = flat.view(variable.shape)
    return tensors


def _num_shards(message: bytes) -> int:
    """Return the number of shards in a BundleHeaderProto, the entry with an empty name."""
    numbers, _ = _values(message)
    num_shards = numbers.get(1, 0)
    if not 0 < num_shards <= _MOST_SHARDS:
        raise Malformed(f"it has {num_shards} shards")
    if numbers.get(2, 0):
        raise Malformed("it is big-endian")
    return num_shards


def _variable(message: bytes) -> Variable:
    """Return the variable of a BundleEntryProto."""
    numbers, messages = _values(message)
    if 7 in messages:
        raise Malformed("a variable is stored in slices by a partitioner, which is not supported")
    dtype, shape = _DTYPES.get(numbers.get(1, 0)), _shape(messages.get(2, []))
    variable = Variable(dtype, shape, *(numbers.get(number, 0) for number in (3, 4, 5, 6)))
    if dtype is not None and variable.size != math.prod(shape) * dtype.itemsize:
        raise Malformed(f"a variable of shape {list(shape)} has {variable.size} bytes")
    return variable


def _shape(parts: list[bytes]) -> tuple[int, ...]:
    """Return the sizes of a TensorShapeProto, whose parts the format merges into one message."""
    _, messages = _values(b"".join(parts))
    if len(messages.get(2, [])) > _MOST_DIMENSIONS:
        raise Malformed(f"a variable has more than {_MOST_DIMENSIONS} dimensions")
    shape = tuple(_values(dimension)[0].get(1, 0) for dimension in messages.get(2, []))
    if math.prod(max(size, 1) for size in shape) > _MOST_ELEMENTS:
        raise Malformed("a variable is implausibly large")
    return shape


def _values(message: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Return the fields of a message: the last value of each number, and all submessages."""
    numbers: dict[int, int] = {}
    messages: dict[int, list[bytes]] = {}
    for number, kind, content in read_fields(message):
        if kind == DELIMITED:
            messages.setdefault(number, []).append(content)
        else:
            numbers[number] = read_varint(content, 0)[0] if kind == VARINT else int.from_bytes(content, "little")
    return numbers, messages


def _refuse_overlaps(variables: Iterable[Variable], num_shards: int) -> None:
    """Raise Malformed if variables share bytes: a small file could have any number of them."""
    placed = sorted((variable.shard, variable.offset, variable.size) for variable in variables if variable.size)
    if placed and placed[-1][0] >= num_shards:
        raise Malformed(f"a variable is in shard {placed[-1][0]} of {num_shards}")
    if any(first[0] == second[0] and first[1] + first[2] > second[1] for first, second in pairwise(placed)):
        raise Malformed("two variables overlap")


def _unsound(index: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{index} is not a readable TensorFlow checkpoint: {reason}; download or save it again")


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its last bytes."""
    with storage_errors("read", path), open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_MAGIC)))
        return file.read() == _MAGIC


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Return the entries of a table, in the order of their keys.

    Raises Malformed if it is damaged, compressed, or larger than any index of a checkpoint.
    """
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
        raise Malformed("it does not end like a table")
    _, place = _handle(footer, 0)
    index, _ = _handle(footer, place)
    entries: dict[bytes, bytes] = {}
    last, end = None, 0
    for _, handle in _entries(_block(data, *index)):
        (offset, size), _ = _handle(handle, 0)
        if offset < end:
            raise Malformed("its blocks do not follow one another")
        end = offset + size
        for key, value in _entries(_block(data, offset, size)):
            if last is not None and key <= last:
                raise Malformed("its names are not in order")
            if len(entries) == MOST_ENTRIES:
                raise Malformed(f"it has more than {MOST_ENTRIES} names")
            entries[key], last = value, key
    return entries


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """Return offset and size of a block, and the end of the handle."""
    offset, place = read_varint(data, place)
    size, place = read_varint(data, place)
    return (offset, size), place


def _block(data: bytes, offset: int, size: int) -> bytes:
    """Return the entries of a block, without its restarts, which are for lookups of single keys."""
    end = offset + size
    if size < 4 or end + _TRAILER.size > len(data) - _FOOTER:
        raise Malformed("a block is outside the file")
    kind, crc = _TRAILER.unpack_from(data, end)
    if crc != masked_crc32c(data[offset : end + 1]):
        raise Malformed("a block does not match its CRC")
    if kind != 0:
        raise Malformed(f"its blocks are compressed (type {kind}), which is not supported")
    restarts = 4 * (int.from_bytes(data[end - 4 : end], "little") + 1)
    if restarts > size:
        raise Malformed("a block has more restarts than bytes")
    return data[offset : end - restarts]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    place, key = 0, b""
    while place < len(block):
        shared, place = read_varint(block, place)
        own, place = read_varint(block, place)
        size, place = read_varint(block, place)
        if shared > len(key) or place + own + size > len(block):
            raise Malformed("an entry exceeds its block")
        if shared + own > LONGEST_KEY:
            raise Malformed(f"a name has more than {LONGEST_KEY} bytes")
        key = key[:shared] + block[place : place + own]
        place += own + size
        yield key, block[place - size : place]
