"""What a folder's disk is, by a table of mounts, and how fast it is; nothing stays behind."""

from pathlib import Path

import pytest

from hornbook.errors import StorageError
from hornbook.storage.disk import FileSystem, disk_speed, file_system

ROOT_LINE = "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "mountinfo"
    path.write_text("".join([ROOT_LINE, *lines]))
    return path


def test_the_longest_mount_counts(tmp_path: Path) -> None:
    below = tmp_path / "data"
    below.mkdir()
    mounts = table(
        tmp_path,
        f"21 20 0:40 / {tmp_path} rw shared:2 master:1 - tmpfs tmpfs rw\n",
        f"22 21 0:41 / {below} rw - nfs4 server:/data rw\n",
        f"23 21 0:42 / {below}base rw - xfs /dev/sdb rw\n",
    )
    remote = file_system(below / "runs" / "a", mounts)
    assert remote == FileSystem(kind="nfs4", mount=str(below))
    assert remote.is_network and not remote.is_memory
    in_memory = file_system(tmp_path / "other", mounts)
    assert in_memory == FileSystem(kind="tmpfs", mount=str(tmp_path))
    assert in_memory.is_memory and not in_memory.is_network
    assert file_system(Path("/"), mounts) == FileSystem(kind="ext4", mount="/")


def test_what_is_mounted_over_another_counts_and_spaces_are_escaped(tmp_path: Path) -> None:
    spaced = tmp_path / "my runs"
    spaced.mkdir()
    escaped = str(spaced).replace(" ", "\\040")
    mounts = table(
        tmp_path, f"21 20 0:40 / {escaped} rw - ext4 a rw\n", f"22 20 0:41 / {escaped} rw - cifs b rw\n", "x\n"
    )
    assert file_system(spaced, mounts) == FileSystem(kind="cifs", mount=str(spaced))


def test_a_system_without_the_table(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "absent") is None


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    speed = disk_speed(tmp_path / "runs" / "mine")
    assert speed.write > 0 and speed.read is not None and speed.read > 0
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StorageError, match=r"cannot write to .*file: Not a directory"):
        disk_speed(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"
