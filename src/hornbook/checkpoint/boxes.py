"""Boxes: the part of a tensor that a file stores, and the check that the boxes of several files cover the tensor.

    blocks.0.feed_forward.up.weight  F32 [8, 6]     model-00000.safetensors   begin [0, 0], shape [8, 3]
                                                    model-00001.safetensors   begin [0, 3], shape [8, 3]

The files of a single-process run store whole tensors. A run that shards tensors over ranks writes a file per rank, and
any other number of ranks reads the boxes that it needs from them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple


class Box(NamedTuple):
    """A contiguous part of a tensor: the index of its first element and its size in each dimension."""

    begin: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "Box":
        """Return the box that covers a tensor of this shape."""
        return cls((0,) * len(shape), shape)

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

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
        stored, total = sum(box.num_elements for box in boxes), math.prod(self.shape)
        if stored != total:
            return f"its boxes have {stored} elements, the tensor {total}"
        for number, box in enumerate(boxes):
            for other in boxes[number + 1 :]:
                if box.shape and other.begin[0] >= box.begin[0] + box.shape[0]:
                    break  # sorted by begin: no later box overlaps
                if box.overlap(other):
                    return f"its boxes at {list(box.begin)} and {list(other.begin)} overlap"
        return None


if TYPE_CHECKING:  # `hornbook checkpoint list` needs no torch
    from torch import Tensor


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
