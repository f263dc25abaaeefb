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
        tensors={"model": {"embedding.tokens": ...}, "optimizer": {...}},  # model.safetensors, ...
        documents={"state": {"samples": 9600}, "recipe": {...}},           # state.json, ...
        files={"tokenizer.json": b"..."},
    )
    """

    step: int
    """Finished steps."""
    tensors: "Mapping[str, Mapping[str, Tensor]]"
    """By group, one safetensors file each, then by name; any shape, dtype and device."""
    documents: Mapping[str, Any] = field(default_factory=dict)
    """By name, one JSON file each."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By file name, written as they are."""
