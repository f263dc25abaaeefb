"""Rename and reshape the tensors of earlier versions' checkpoints.

    blocks.0.attention.qkv_bias [3·H·K]               -> blocks.0.attention.qkv.bias [3, H·K]
    blocks.0.attention.qkv_weight.exp_avg [3, H·K, D] -> blocks.0.attention.qkv.weight.exp_avg [3, H·K, D]

A tensor is renamed only if the model has the new name and not the old one, so custom models keep their names.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from torch import Tensor

from hornbook.checkpoint.contents import Contents


class Rename(NamedTuple):
    """A renamed parameter; its optimizer state has the same name with a suffix."""

    old: re.Pattern[str]
    new: str
    shape: tuple[int, ...] | None = None
    """The new shape, with -1 for one inferred size; None if unchanged."""


RENAMES: Final = (
    Rename(re.compile(r"(.*\.attention)\.qkv_weight(\.\w+)?"), r"\1.qkv.weight\2"),
    Rename(re.compile(r"(.*\.attention)\.qkv_bias(\.\w+)?"), r"\1.qkv.bias\2", shape=(3, -1)),
)


def upgrade(contents: Contents, own: Mapping[str, Collection[str]]) -> Contents:
    """Return the contents of a checkpoint with a model's current names.

    Args:
        contents: contents of any version.
        own: names of the model's tensors and, if any, of its optimizer's, by group.
    """
    groups = {group: _upgrade_group(tensors, own.get(group, {})) for group, tensors in contents.tensors.items()}
    return replace(contents, tensors=groups)


def _upgrade_group(stored: Mapping[str, Tensor], own: Collection[str]) -> Mapping[str, Tensor]:
    renamed = {name: rename for name in stored if name not in own for rename in RENAMES if rename.old.fullmatch(name)}
    names = {name: rename.old.sub(rename.new, name) for name, rename in renamed.items()}
    names = {name: new for name, new in names.items() if new in own and new not in stored}
    if not names:
        return stored
    upgraded = {}
    for name, tensor in stored.items():
        shape = renamed[name].shape if name in names else None
        if shape is not None and tensor.numel() % abs(math.prod(shape)) == 0:  # else the comparison of shapes raises
            tensor = tensor.reshape(shape)
        upgraded[names.get(name, name)] = tensor
    return upgraded
