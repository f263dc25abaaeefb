"""The files of weights in a folder: one or several, safetensors or, if allowed, PyTorch's; which of several has what.

::

    model.safetensors                        the first existing file is read
    model.safetensors.index.json             {"weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}
    pytorch_model.bin, pytorch_model.bin.index.json                                        with --allow-pickle

The names in an index are untrusted: each must be a plain file name of a regular file in the folder or, if the folder is
a snapshot in the hub's cache, among the cache's blobs. The price of reporting all problems at once: every shard is read
before any tensor is checked, so all weights are in memory at the same time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from hornbook.checkpoint.tensors import read
from hornbook.errors import CheckpointError, DataError
from hornbook.exchange.contents import inside
from hornbook.exchange.huggingface.torch_pickles import read_pickled
from hornbook.storage.json_files import read_json
from hornbook.wording import first_few

SAFE_FILES: Final = ("model.safetensors", "model.safetensors.index.json")
PICKLED_FILES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes of exported weights."""


def read_weights(folder: Path, *, allow_pickle: bool) -> tuple[dict[str, Tensor], list[Path]]:
    """Return the tensors of a folder by name, and the files that they came from.

    Raises CheckpointError if there are no weights, or only pickled ones that are not allowed, or a file is
    malformed.
    """
    chosen = _choose(folder, allow_pickle=allow_pickle)
    if chosen.suffix != ".json":
        return _read(chosen), [chosen]
    weight_map = _read_index(chosen)
    shards = _shards(folder, weight_map, chosen)
    tensors: dict[str, Tensor] = {}
    missing, twice = [], []
    for shard in shards:
        found = _read(shard)
        named = {name for name, file in weight_map.items() if file == shard.name}
        missing += [f"{name} is not in {shard.name}" for name in sorted(named - found.keys())]
        twice += [f"{name} is in {shard.name} and in another file" for name in sorted(found.keys() & tensors.keys())]
        tensors |= found
    if problems := [*first_few(missing), *first_few(twice)]:
        raise CheckpointError(f"{chosen} does not fit its files: {'; '.join(problems)}; download the folder again")
    return tensors, [chosen, *shards]


def cast_weights(weights: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return the weights in another dtype; raise CheckpointError if a finite value overflows."""
    cast = {name: tensor.to(DTYPES[dtype]) for name, tensor in weights.items()}
    lost = sorted(name for name, tensor in cast.items() if dtype == "fp16" and not bool(tensor.isfinite().all()))
    if lost:
        raise CheckpointError(
            f"fp16 ends at 65504, but there are larger values in {', '.join(lost)}; export bf16 or fp32"
        )
    return cast


def split_weights(weights: Mapping[str, Tensor], shard_size: float) -> dict[str, dict[str, Tensor]]:
    """Return the files of weights by name, each with at most ``shard_size`` bytes of tensors, or a single tensor."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > shard_size:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    if len(shards) == 1:
        return {SAFE_FILES[0]: shards[0]}
    return {f"model-{n:05}-of-{len(shards):05}.safetensors": shard for n, shard in enumerate(shards, 1)}


def index_of(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, object]:
    """Return the index of split weights: their total bytes, and the file of each tensor."""
    total = sum(tensor.nbytes for shard in files.values() for tensor in shard.values())
    return {
        "metadata": {"total_size": total},
        "weight_map": {name: file for file, shard in files.items() for name in shard},
    }


def _choose(folder: Path, *, allow_pickle: bool) -> Path:
    there = [name for name in (*SAFE_FILES, *PICKLED_FILES) if (folder / name).exists() or (folder / name).is_symlink()]
    if not there:
        raise CheckpointError(f"{folder} has no weights; expected one of {', '.join((*SAFE_FILES, *PICKLED_FILES))}")
    if there[0] in PICKLED_FILES and not allow_pickle:
        raise CheckpointError(
            f"{folder} has its weights only in {there[0]}, a format that can contain code: if you trust its source, "
            f"run `hornbook checkpoint import {folder} --output FOLDER --allow-pickle` and use that folder"
        )
    return inside(folder, there[0])


def _read(path: Path) -> dict[str, Tensor]:
    return read_pickled(path) if path.suffix == ".bin" else read(path)


def _read_index(path: Path) -> dict[str, str]:
    try:
        index = read_json(path, "the index of the weights")
    except DataError as error:
        raise CheckpointError(str(error)) from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path} has no weight_map, a table of tensors and their files; download the folder again"
        )
    if not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{path}: a file in its weight_map is not a text; download the folder again")
    return weight_map


def _shards(folder: Path, weight_map: Mapping[str, str], index: Path) -> list[Path]:
    """Return the checked files of an index; shards have the same format as the index."""
    suffix = Path(index.stem.removesuffix(".index")).suffix
    problems, shards = [], []
    for name in sorted(set(weight_map.values())):
        try:
            shards.append(inside(folder, name))
            if not name.endswith(suffix):
                raise CheckpointError(f"{folder}: {name!r:.120} is not a {suffix} file")
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"{index} names files that cannot be used: {'; '.join(problems)}")
    return shards
