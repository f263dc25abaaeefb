"""What saves and prunes did not write stays, whatever its name is."""

import os
import re

import pytest
import torch
from tiny_checkpoints import assert_sound, names, saved

from hornbook.checkpoint import Contents, manifest, prune, save, stamps
from hornbook.checkpoint.commit import set_aside

DEAD_PID = 2**31 - 2


@pytest.fixture
def folder(tmp_path):
    """A folder with one sound checkpoint."""
    saved(tmp_path / "checkpoints", 5)
    return tmp_path / "checkpoints"


def test_leftovers_with_anything_that_no_save_writes_stay(folder):
    """A folder of the user, a link, another user's file; the names are those of temporary folders."""
    home = folder.parent / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("mine")
    (folder / f"step-00000001.tmp-{DEAD_PID}" / "thesis").mkdir(parents=True)
    (folder / f"step-00000002.tmp-{DEAD_PID}").symlink_to(home)
    (folder / f"step-00000003.tmp-{DEAD_PID}").write_text("mine")
    if not os.geteuid():
        (folder / f"step-00000004.tmp-{DEAD_PID}").mkdir()
        os.chown(folder / f"step-00000004.tmp-{DEAD_PID}", 12345, 12345)
    before = names(folder)
    saved(folder, 10)
    prune(folder, keep_last=5)
    assert names(folder) == sorted([*before, "step-00000010"])
    assert (home / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("of_user", ["notes.txt", "export/model.safetensors"])
def test_a_damaged_checkpoint_with_files_of_the_user_is_replaced_and_kept(folder, caplog, of_user, has_manifest):
    path = folder / "step-00000005"
    (path / of_user).parent.mkdir(exist_ok=True)
    (path / of_user).write_text("mine")
    if not has_manifest:
        (path / "manifest.json").write_bytes(b"{}")
    saved(folder, 5)
    assert_sound(folder, 5)
    _, kept = names(folder)
    assert re.fullmatch(r"step-00000005\.kept-[0-9a-f]{8}", kept)
    assert (folder / kept / of_user).read_text() == "mine"
    assert caplog.messages == [
        f"{path} was replaced; its old content has other files, too, and is kept as {kept}",
    ]


def test_a_folder_in_the_place_of_a_diverged_checkpoint_is_kept(folder):
    saved(folder, 10)
    (folder / "step-00000010.diverged").mkdir()
    (folder / "step-00000010.diverged" / "notes.txt").write_text("mine")
    assert set_aside(folder, 10) == folder / "step-00000010.diverged"
    saved(folder, 10)
    assert set_aside(folder, 10) == folder / "step-00000010.diverged"
    first, diverged, kept = names(folder)
    assert (first, diverged) == ("step-00000005", "step-00000010.diverged")
    assert (folder / kept / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("change", ["none", "write", "other file"])
def test_a_prune_reads_again_what_has_changed_since_it_was_saved(folder, monkeypatch, change):
    tensors = {"model": {"weight": torch.arange(1 << 18, dtype=torch.float32)}}
    paths = [save(folder, Contents(step=step, tensors=tensors)) for step in (10, 15)]
    known = {path: stamps(path) for path in paths}
    assert list(known[paths[0]]) == ["model-00000.safetensors"]
    file = paths[1] / "model-00000.safetensors"
    data = file.read_bytes()[:-1] + b"x"
    if change == "write":
        times = file.stat()
        file.write_bytes(data)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "other file":
        (paths[1] / "new").write_bytes(data)
        (paths[1] / "new").rename(file)
    read, sha256_file = [], manifest.sha256_file
    monkeypatch.setattr(manifest, "sha256_file", lambda path: read.append(path) or sha256_file(path))
    removed = prune(folder, keep_last=1, known=known)
    if change == "none":
        assert removed == [folder / "step-00000005", paths[0]]
        assert file not in read
    else:
        assert removed == [folder / "step-00000005"], "the damaged one does not count as kept"
        assert file in read
