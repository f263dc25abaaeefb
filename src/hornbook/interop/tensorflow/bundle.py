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
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from hornbook.errors import CheckpointError, DataError
from hornbook.exchange.foreign import inside
from hornbook.interop.formats.crc32c import masked_crc32c
from hornbook.interop.formats.protobuf import DELIMITED, VARINT, Malformed, read_fields, read_varint
from hornbook.interop.tensorflow.table import read_table
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
