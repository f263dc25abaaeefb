"""Checkpoints of version 1: a file a group, tensors described by the files alone; written here as they were then."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
from tiny_checkpoints import assert_equal, contents, one_line

from hornbook.checkpoint import load, newest_sound, save, verify
from hornbook.errors import CheckpointError
from hornbook.storage.json_files import dump_json


def write_version_1(folder: Path, step: int) -> Path:
    """What version 1 wrote for ``contents(step)``."""
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    held = contents(step)
    kinds = {}
    for group, tensors in held.tensors.items():
        safetensors.torch.save_file(dict(tensors), path / f"{group}.safetensors")
        kinds[f"{group}.safetensors"] = "tensors"
    for name, document in held.documents.items():
        (path / f"{name}.json").write_bytes(dump_json(document))
        kinds[f"{name}.json"] = "document"
    for name, data in held.files.items():
        (path / name).write_bytes(data)
        kinds[name] = "file"
    files = {
        name: {
            "kind": kind,
            "size": (path / name).stat().st_size,
            "sha256": hashlib.sha256((path / name).read_bytes()).hexdigest(),
        }
        for name, kind in kinds.items()
    }
    manifest = {"files": files, "format": "hornbook checkpoint", "step": step, "version": 1}
    text = json.dumps(manifest, sort_keys=True, indent=2) + "\n"
    (path / "manifest.json").write_text(text)
    return path


def test_version_1_is_verified_and_loaded(tmp_path):
    path = write_version_1(tmp_path, 5)
    assert verify(path) == []
    assert_equal(load(path), contents(5))
    assert set(load(path, only={"model"}).tensors) == {"model"}


def test_both_versions_are_side_by_side(tmp_path):
    write_version_1(tmp_path, 5)
    newest = save(tmp_path, contents(10))
    assert json.loads((newest / "manifest.json").read_text())["version"] == 2
    assert newest_sound(tmp_path, pytest.fail) == newest
    shutil.rmtree(newest)
    assert_equal(load(newest_sound(tmp_path, pytest.fail)), contents(5))


def test_a_sound_checkpoint_of_version_1_is_not_written_again(tmp_path):
    path = write_version_1(tmp_path, 5)
    assert save(tmp_path, contents(5)) == path
    assert (path / "model.safetensors").exists()


def test_a_damaged_file_of_version_1_is_reported(tmp_path):
    path = write_version_1(tmp_path, 5)
    (path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match=r"model\.safetensors has 4 bytes") as caught:
        load(path)
    assert one_line(caught.value)
