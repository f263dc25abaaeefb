"""Write named tensors as safetensors, one tensor at a time, and read them.

    {"b": bf16 [2], "a": fp32 [2, 2]}
        -> 8 bytes: length of the header
           {"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{...,"data_offsets":[16,20]}}, padded to 8 bytes
           16 bytes of a, 4 bytes of b

The format is Hugging Face's (https://github.com/huggingface/safetensors): it contains no code, and many tools read it.
The safetensors library writes from one buffer with all tensors, or without hashes and fault points; this short writer
streams one tensor at a time through ``storage``. Wide dtypes come first and names are sorted, so that all tensors are
aligned and equal tensors give equal bytes. The library checks the header of a file that is read, after its size. The
price: each tensor is copied once out of the mapped file, so that nothing depends on the file afterwards.

The files of a single-process run store whole tensors. A run that shards tensors over ranks writes a file of boxes per
rank, and any other number of ranks reads those that it needs::

    blocks.0.feed_forward.up.weight  F32 [8, 6]     model-00000.safetensors   begin [0, 0], shape [8, 3]
                                                    model-00001.safetensors   begin [0, 3], shape [8, 3]
"""

import hashlib
import json
import math
import mmap
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hornbook.errors import CheckpointError, DataError
from hornbook.storage.file_writer import BytesLike
from hornbook.storage.json_files import parse_json
from hornbook.storage.system import open_regular, storage_errors

if TYPE_CHECKING:  # `hornbook checkpoint list` needs no torch
    from torch import Tensor


class Box(NamedTuple):
    """A contiguous part of a tensor: the index of its first element and its size in each dimension."""

    begin: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "Box":
        """Return the box that covers a tensor of this shape."""
        return cls((0,) * len(shape), shape)

    def overlap(self, other: "Box") -> "Box | None":
        """Return the intersection of two boxes of a tensor, None if it is empty."""
        begin = tuple(map(max, self.begin, other.begin))
        ends = zip(self.begin, self.shape, other.begin, other.shape, strict=True)
        shape = tuple(min(a + n, b + m) - first for (a, n, b, m), first in zip(ends, begin, strict=True))
        return Box(begin, shape) if all(size > 0 for size in shape) else None

    def inside(self, outer: "Box") -> tuple[slice, ...]:
        """Return the indices of this box in a tensor that is the box ``outer``."""
        starts = (own - first for own, first in zip(self.begin, outer.begin, strict=True))
        return tuple(slice(start, start + size) for start, size in zip(starts, self.shape, strict=True))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A tensor as a checkpoint stores it: its logical dtype and shape, and its boxes by file name."""

    dtype: str
    """Name in safetensors, such as ``F32``."""
    shape: tuple[int, ...]
    boxes: Mapping[str, Box]

    def problem(self) -> str | None:
        """Return an error message unless the boxes cover each element exactly once."""
        boxes = sorted(self.boxes.values())
        for box in boxes:
            if not len(box.begin) == len(box.shape) == len(self.shape) or any(
                first + size > total for first, size, total in zip(*box, self.shape, strict=True)
            ):
                return f"a box at {list(box.begin)} of {list(box.shape)} does not fit the tensor {list(self.shape)}"
        stored, total = sum(math.prod(box.shape) for box in boxes), math.prod(self.shape)
        if stored != total:
            return f"its boxes have {stored} elements, the tensor {total}"
        for number, box in enumerate(boxes):
            for other in boxes[number + 1 :]:
                if box.shape and other.begin[0] >= box.begin[0] + box.shape[0]:
                    break  # sorted by begin: no later box overlaps
                if box.overlap(other):
                    return f"its boxes at {list(box.begin)} and {list(other.begin)} overlap"
        return None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of one checkpoint.

    Contents(
        step=1200,
        tensors={"model": {"embedding.tokens": ...}, "optimizer": {...}},  # model-00000.safetensors, ...
        documents={"state": {"samples": 9600}, "recipe": {...}},           # state.json, ...
        files={"tokenizer.json": b"..."},
    )
    """

    step: int
    """The number of finished steps."""
    tensors: "Mapping[str, Mapping[str, Tensor]]"
    """By group, then by name; any shape, dtype and device. After loading, each is read from disk on access."""
    documents: Mapping[str, Any] = field(default_factory=dict)
    """By name, one JSON file each."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By file name, written unchanged."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The box of a tensor on one rank."""

    values: "Tensor"
    begin: tuple[int, ...]
    """Index of the box's first element in the whole tensor."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    is_copy: bool = False
    """Whether an earlier rank has the same box."""

    @classmethod
    def whole(cls, tensor: "Tensor") -> "Shard":
        """Return the shard of a tensor that one rank has in full."""
        return cls(values=tensor, begin=(0,) * tensor.dim(), shape=tuple(tensor.shape))


MAX_HEADER_BYTES: Final = 100 << 20
MAX_TENSORS: Final = 1_000_000

DTYPES: Final = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
"""The dtypes that a checkpoint can store, by their names in torch, with their names in safetensors."""
_AGAIN: Final = "the download or copy is incomplete: remove the file, then fetch it again"
_TORCH_DTYPES: Final = {name: dtype.removeprefix("torch.") for dtype, name in DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The content of a file: its size in bytes, and its chunks, which can be iterated once."""

    size: int
    chunks: Iterator[BytesLike]


def encode(tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str] | None = None) -> Encoded:
    """Return tensors as the bytes of a safetensors file, encoded while the chunks are iterated.

    A contiguous tensor on the CPU is not copied; any other is copied when its chunk is due.

    Args:
        tensors: tensors by name.
        metadata: notes for other readers, such as transformers' ``{"format": "pt"}``.

    Raises:
        CheckpointError: safetensors has no such dtype, or a name is the reserved ``__metadata__``.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header = _header(ordered, metadata)
    size = len(header) + sum(tensor.numel() * tensor.element_size() for _, tensor in ordered)
    return Encoded(size=size, chunks=_chunks(header, [tensor for _, tensor in ordered]))


def digest(tensors: "Mapping[str, Tensor]") -> str:
    """Return the SHA-256, in hexadecimal, of the tensors' safetensors file; equal tensors give equal hashes."""
    content = hashlib.sha256()
    for chunk in encode(tensors).chunks:
        content.update(chunk)
    return content.hexdigest()


def read(path: Path) -> "dict[str, Tensor]":
    """Return the tensors of a safetensors file by name, on the CPU, independent of the file.

    Raises CheckpointError if the file is malformed, or its header is unreasonably large.
    """
    file = open_file(path)
    with _reading(path):
        return {name: file.tensor(name).clone() for name in sorted(file.layouts)}


def open_file(path: Path) -> "TensorFile":
    """Check a file's header and map the file.

    Raises CheckpointError if the file is malformed, or its header is unreasonably large.
    """
    from safetensors import safe_open

    with storage_errors("read", path), open_regular(path) as file:
        available = os.fstat(file.fileno()).st_size - 8
        length = int.from_bytes(file.read(8), "little")
        if available < 0 or available < length <= MAX_HEADER_BYTES:
            raise _malformed(path, f"it ends in its header, after {available + 8:,} bytes", _AGAIN)
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise _malformed(path, f"the header cannot have {length} bytes")
        text = file.read(length)
    try:  # rejects a name that occurs twice, which the library accepts
        header = parse_json(text, "the header")
    except DataError as error:
        raise _malformed(path, str(error)) from error
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise _malformed(path, f"the header is not an object of at most {MAX_TENSORS} tensors")
    with _reading(path):
        fields = [field for field in header.values() if isinstance(field, dict)]
        ends = (end for field in fields for end in field.get("data_offsets", ()) if isinstance(end, int))
        if (content := max(ends, default=0)) > available - length:
            raise _malformed(path, f"it has {available + 8:,} of {8 + length + content:,} bytes", _AGAIN)
        library = safe_open(path, framework="pt")
        with path.open("rb") as whole:  # private, so that PyTorch may take the pages as a tensor's
            pages = mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_COPY)
        return TensorFile(library, header, 8 + length, pages)


class TensorFile:
    """An open safetensors file; it is not the library's handle, since that leaks two integers a tensor (0.8.0)."""

    def __init__(self, library: Any, header: dict[str, Any], begin: int, pages: mmap.mmap) -> None:
        self._library, self._begin, self._pages = library, begin, pages
        self._fields = {name: field for name, field in header.items() if name != "__metadata__"}
        self.layouts = {name: (field["dtype"], tuple(field["shape"])) for name, field in self._fields.items()}
        """Dtype, such as ``F32``, and shape of each tensor by name."""

    def tensor(self, name: str) -> "Tensor":
        """Return a tensor, which shares the file's pages."""
        import torch

        stored, shape = self.layouts[name]
        if stored in _TORCH_DTYPES and 0 not in shape:
            dtype: torch.dtype = getattr(torch, _TORCH_DTYPES[stored])
            offset = self._begin + self._fields[name]["data_offsets"][0]
            if offset % dtype.itemsize == 0:  # not in all files of others
                count = math.prod(shape)
                return torch.frombuffer(self._pages, dtype=dtype, count=count, offset=offset).reshape(shape)
        found: Tensor = self._library.get_tensor(name)
        return found


class StoredTensors(Mapping[str, "Tensor"]):
    """The tensors of a group by name, each read from its files to the CPU on access.

    Args:
        folder: the checkpoint's folder.
        layouts: layouts of the tensors, by name; ``problem()`` of each is None.
        files: open files, by name.
    """

    def __init__(self, folder: Path, layouts: Mapping[str, Layout], files: Mapping[str, TensorFile]) -> None:
        self._folder, self.layouts, self._files = folder, layouts, files

    def __getitem__(self, name: str) -> "Tensor":
        return self.read(name, Box.whole(self.layouts[name].shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self.layouts)

    def __len__(self) -> int:
        return len(self.layouts)

    def __contains__(self, name: object) -> bool:
        return name in self.layouts

    def read(self, name: str, wanted: Box) -> "Tensor":
        """Return a box of a tensor, assembled from the boxes in the files, independent of the files.

        Raises CheckpointError if a file is malformed.
        """
        import torch

        layout, result = self.layouts[name], None
        dtype = getattr(torch, _TORCH_DTYPES[layout.dtype])
        for file_name, box in layout.boxes.items():
            common = box.overlap(wanted)
            if common is None:
                continue
            file = self._files[file_name]
            with _reading(self._folder / file_name):
                found = file.tensor(name)[common.inside(box)]
                if common == wanted:
                    return torch.clone(found, memory_format=torch.contiguous_format)
            result = torch.empty(wanted.shape, dtype=dtype) if result is None else result
            result[common.inside(wanted)] = found
        return torch.empty(wanted.shape, dtype=dtype) if result is None else result


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the library's errors into CheckpointError."""
    from safetensors import SafetensorError

    try:
        with storage_errors("read", path):
            yield
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _malformed(path, " ".join(str(error).split())) from error


def _header(ordered: "list[tuple[str, Tensor]]", metadata: Mapping[str, str] | None) -> bytes:
    assert sys.byteorder == "little", "safetensors is little-endian, as is every machine that PyTorch supports"
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in ordered:
        dtype = DTYPES.get(str(tensor.dtype))
        if dtype is None or name == "__metadata__":
            raise CheckpointError(f"tensor {name} of {tensor.dtype} cannot be stored; expected {', '.join(DTYPES)}")
        end = offset + tensor.numel() * tensor.element_size()
        fields[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(header: bytes, tensors: "list[Tensor]") -> Iterator[BytesLike]:
    import torch

    yield header
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def _malformed(path: Path, reason: str, remedy: str = "use another checkpoint") -> CheckpointError:
    return CheckpointError(f"{path} is not a valid safetensors file: {reason}; {remedy}")
