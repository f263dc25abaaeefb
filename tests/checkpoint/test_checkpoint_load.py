import subprocess
import sys

import pytest
import torch
from tiny_checkpoints import assert_equal, contents, one_line, saved

from hornbook.checkpoint import Contents, load, save
from hornbook.checkpoint.manifest import Entry, Manifest
from hornbook.errors import CheckpointError
from hornbook.storage import write_file


def test_what_was_saved_is_loaded(tmp_path):
    for path, step in zip(saved(tmp_path, 5, 10), (5, 10), strict=True):
        assert_equal(load(path), contents(step))


def test_only_the_wanted_tensors_are_read(tmp_path):
    (path,) = saved(tmp_path, 5)
    found = load(path, only={"model", "something else"})
    assert set(found.tensors) == {"model"}
    assert found.documents == contents(5).documents and found.files == contents(5).files
    assert load(path, only=()).tensors == {}


def test_a_damaged_file_is_reported_even_if_it_is_not_needed(tmp_path):
    (path,) = saved(tmp_path, 5)
    (path / "optimizer-00000.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"optimizer-00000\.safetensors is missing"):
        load(path, only={"model"})


def test_saving_does_not_wait_for_later_changes(tmp_path):
    """The stored bytes are those at the time of the call."""
    weight = torch.zeros(4)
    path = save(tmp_path, Contents(step=1, tensors={"model": {"weight": weight}}))
    weight.fill_(1.0)
    assert load(path).tensors["model"]["weight"].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        ("state.json", "document", b"{not json"),
        ("state.json", "document", b""),
        ("model-00000.safetensors", "tensors", b"junk"),
    ],
)
def test_content_that_matches_its_manifest_may_still_be_malformed(tmp_path, name, kind, data):
    written = write_file(tmp_path / name, data)
    entry = Entry(kind=kind, size=written.size, sha256=written.sha256)
    write_file(tmp_path / "manifest.json", Manifest(step=1, files={name: entry}).to_bytes())
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert str(tmp_path / name) in one_line(caught.value)


def test_looking_at_checkpoints_takes_no_torch(tmp_path):
    saved(tmp_path, 5)
    code = (
        "import sys; from pathlib import Path; from hornbook.checkpoint import list_checkpoints;"
        "assert not list_checkpoints(Path(sys.argv[1]))[0].problems; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
