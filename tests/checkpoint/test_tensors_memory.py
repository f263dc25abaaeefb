"""Reading whole tensors again and again holds no more objects: safetensors' own handle keeps two for each."""

import gc
import sys
from pathlib import Path

import torch

from hornbook.checkpoint.tensors import encode, read


def test_reading_whole_tensors_leaves_no_objects(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = {f"layers.{number}": torch.full((8, 8), float(number)) for number in range(20)}
    file.write_bytes(b"".join(encode(tensors).chunks))
    for _ in range(5):
        found = read(file)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(100):
        found = read(file)
    gc.collect()
    assert sys.getallocatedblocks() - before < 400, "4,000 with the library's handle"
