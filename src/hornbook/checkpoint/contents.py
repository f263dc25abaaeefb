"""The contents of a checkpoint in memory: tensors by group and name, JSON documents, and files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
