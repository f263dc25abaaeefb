"""Reading tensors again and again holds no more objects: safetensors' own handle keeps two for each."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hornbook.checkpoint.tensors import Box, Layout, StoredTensors, encode, open_file, read

TENSORS = {f"layers.{number}": torch.full((8, 8), float(number)) for number in range(20)}


def corners(file: Path) -> dict[str, torch.Tensor]:
    layout = Layout(dtype="F32", shape=(8, 8), boxes={file.name: Box.whole((8, 8))})
    stored = StoredTensors(file.parent, dict.fromkeys(TENSORS, layout), {file.name: open_file(file)})
    return {name: stored.read(name, Box((0, 4), (2, 3))) for name in TENSORS}


@pytest.mark.parametrize(("read_all", "shape"), [(read, (8, 8)), (corners, (2, 3))])
def test_reading_leaves_no_objects(
    tmp_path: Path, read_all: Callable[[Path], dict[str, torch.Tensor]], shape: tuple[int, int]
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"".join(encode(TENSORS).chunks))
    for _ in range(5):
        found = read_all(file)
    assert all(torch.equal(found[name], torch.full(shape, float(number))) for number, name in enumerate(TENSORS))
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(100):
        found = read_all(file)
    gc.collect()
    assert sys.getallocatedblocks() - before < 400, "4,000 with the library's handle"
