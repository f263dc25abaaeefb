"""TensorFlow checkpoints of a few kilobytes, written byte by byte from the description of the format."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hornbook.interop.formats.crc32c import masked_crc32c

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
DTYPES = {
    torch.float32: 1,
    torch.float64: 2,
    torch.int32: 3,
    torch.int64: 9,
    torch.bool: 10,
    torch.bfloat16: 14,
    torch.float16: 19,
}
HEADER = b"\x08\x01"
"""One shard, little-endian."""

Change = Callable[[bytes], bytes]


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: a varint, or bytes."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def entry(shape: Sequence[int], offset: int, size: int, crc: int = 0, *, dtype: int = 1, shard: int = 0) -> bytes:
    """A BundleEntryProto."""
    dimensions = b"".join(field(2, field(1, length)) for length in shape)
    where = (field(3, shard) if shard else b"") + (field(4, offset) if offset else b"") + field(5, size)
    return field(1, dtype) + field(2, dimensions) + where + varint(6 << 3 | 5) + struct.pack("<I", crc)


def contents_of(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """What a block holds: entries that share what they can with the one before, and one restart."""
    content, last = b"", b""
    for key, value in entries:
        shared = next((n for n, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return content + struct.pack("<II", 0, 1)


def block(content: bytes, kind: int = 0) -> bytes:
    """A block: its content, the kind of its compression, and the CRC of both."""
    content += bytes([kind])
    return content + struct.pack("<I", masked_crc32c(content))


def handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


def table(
    entries: Sequence[tuple[bytes, bytes]],
    *,
    per_block: int = 3,
    kind: int = 0,
    damage: Mapping[int, Change] | None = None,
) -> bytes:
    """A table with a block for every few entries; block number n, the index block the last, is as ``damage`` has it."""
    damage = damage or {}
    data, handles = b"", []
    for number, start in enumerate(range(0, len(entries), per_block)):
        part = entries[start : start + per_block]
        content = damage.get(number, bytes)(contents_of(part))
        handles.append((part[-1][0], handle(len(data), len(content))))
        data += block(content, kind)
    content = damage.get(len(handles), bytes)(contents_of(handles))
    footer = handle(0, 0) + handle(len(data), len(content))
    return data + block(content, kind) + footer.ljust(40, b"\0") + MAGIC


def values_of(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def encode(tensors: Mapping[str, Tensor], num_shards: int = 1) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The entries of an index and the shards; tensors go to the shards in turn."""
    shards, entries = [b""] * num_shards, [(b"", field(1, num_shards) + field(3, field(1, 1)))]
    for number, name in enumerate(sorted(tensors)):
        tensor, shard = tensors[name], number % num_shards
        data = values_of(tensor)
        where = len(shards[shard]), len(data), masked_crc32c(data)
        entries.append((name.encode(), entry(tensor.shape, *where, dtype=DTYPES[tensor.dtype], shard=shard)))
        shards[shard] += data
    return entries, shards


def write_bundle(prefix: Path, tensors: Mapping[str, Tensor], *, num_shards: int = 1, **options: object) -> Path:
    """Write a checkpoint as a Saver would; returns its index."""
    entries, shards = encode(tensors, num_shards)
    prefix.parent.mkdir(exist_ok=True)
    for number, shard in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{num_shards:05d}").write_bytes(shard)
    index = prefix.with_name(f"{prefix.name}.index")
    index.write_bytes(table(entries, **options))
    return index


def google_name(name: str) -> str:
    """Google's name of a weight of transformers' BertForPreTraining."""
    head = {"cls.predictions.bias": "output_bias", "cls.seq_relationship.weight": "output_weights"}
    if name in head:
        return f"{name.rpartition('.')[0].replace('.', '/')}/{head[name]}"
    name = name.replace("cls.seq_relationship.bias", "cls.seq_relationship.output_bias")
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    name = name.replace("_embeddings.weight", "_embeddings").replace("weight", "kernel").replace("layer.", "layer_")
    return name.replace(".", "/")


def google_variables(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of transformers' BERT as Google's variables, kernels transposed."""
    named = {google_name(name): tensor for name, tensor in weights.items()}
    return {name: tensor.t() if name.endswith("kernel") else tensor for name, tensor in named.items()}


def openai_name(name: str) -> str:
    """OpenAI's name of a weight of transformers' GPT-2."""
    *path, layer, kind = name.removeprefix("transformer.").split(".")
    if layer in ("wte", "wpe"):
        return f"model/{layer}"
    last = "b" if kind == "bias" else "g" if layer.startswith("ln") else "w"
    return "/".join(["model", *path, layer, last]).replace("/h/", "/h")


def openai_variables(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of transformers' GPT-2 as OpenAI's variables, matrices with the width of a convolution, which is 1."""
    named = {openai_name(name): tensor for name, tensor in weights.items()}
    return {name: tensor[None] if name.endswith("/w") else tensor for name, tensor in named.items()}


def with_slots(variables: Mapping[str, Tensor], *slots: str) -> dict[str, Tensor]:
    """Variables, the moments of their optimizer, and its counter."""
    moments = {f"{name}/{slot}": torch.full(v.shape, 9.0) for name, v in variables.items() for slot in slots}
    return {**variables, **moments, "global_step": torch.tensor(7), "beta1_power": torch.tensor(0.9)}


def graphcore_variables(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same under the names of Graphcore's BERT, with one kernel for query, key and value."""
    variables = google_variables(weights)
    for name in [name for name in variables if name.endswith("/query/kernel")]:
        kernels = [variables.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        variables[name.replace("query/kernel", "kernel/qkv_weight")] = torch.cat(kernels, 1)
    renamed = {"LayerNorm": "GroupNorm", "attention/output": "attention/projection", "bert/pooler": "pooler"}
    for google, graphcore in renamed.items():
        variables = {name.replace(google, graphcore): tensor for name, tensor in variables.items()}
    return variables


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
