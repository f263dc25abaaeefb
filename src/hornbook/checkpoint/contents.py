"""What a checkpoint holds, in memory: tensors by file and name, JSON documents, and files as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `hornbook checkpoint list` needs no torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything of one checkpoint.

    Contents(
        step=1200,
        tensors={"model": {"embedding.tokens": ...}, "optimizer": {...}},  # model-00000.safetensors, ...
        documents={"state": {"samples": 9600}, "recipe": {...}},           # state.json, ...
        files={"tokenizer.json": b"..."},
    )
    """

    step: int
    """Finished steps."""
    tensors: "Mapping[str, Mapping[str, Tensor]]"
    """By group, then by name; any shape, dtype and device. Loaded ones are read when they are looked up."""
    documents: Mapping[str, Any] = field(default_factory=dict)
    """By name, one JSON file each."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By file name, written as they are."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The box of a tensor that one rank holds."""

    values: "Tensor"
    begin: tuple[int, ...]
    """Index of the box's first element in the whole tensor."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    is_copy: bool = False
    """Whether an earlier rank holds the same box."""

    @classmethod
    def whole(cls, tensor: "Tensor") -> "Shard":
        """Return a tensor that lies on one rank in one piece."""
        return cls(values=tensor, begin=(0,) * tensor.dim(), shape=tuple(tensor.shape))
