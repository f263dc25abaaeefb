"""Removal stays within its folder: no links, no other file systems, nothing of other users."""

import os
import stat

import pytest

from hornbook.errors import StorageError
from hornbook.storage import removal
from hornbook.storage.removal import has_only_files, is_own, mounts_below, remove_locked_folder, remove_tree


@pytest.fixture
def tree(tmp_path):
    """A folder to remove, with links to ``tmp_path / "home"``, which stays."""
    home, tree = tmp_path / "home", tmp_path / "tree"
    (home / "inner").mkdir(parents=True)
    (home / "thesis.tex").write_text("mine")
    (tree / "a" / "b").mkdir(parents=True)
    for folder in (tree, tree / "a" / "b"):
        (folder / "file").write_text("content")
        (folder / "folder link").symlink_to(home)
        (folder / "file link").symlink_to(home / "thesis.tex")
    return tree


def assert_home_is_whole(tree):
    home = tree.parent / "home"
    assert sorted(path.name for path in home.iterdir()) == ["inner", "thesis.tex"]
    assert (home / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("remove", [remove_tree, remove_locked_folder])
def test_links_are_removed_and_not_followed(remove, tree):
    remove(tree)
    assert not tree.exists()
    assert_home_is_whole(tree)
    tree.symlink_to(tree.parent / "home")
    remove(tree)
    assert not os.path.lexists(tree)
    assert_home_is_whole(tree)


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(tree, monkeypatch):
    """As another user could do in a shared folder, between a look at the folder and its opening."""
    open_now = os.open

    def swap_and_open(path, flags, **options):
        if path == "a":
            (tree / "a").rename(tree.parent / "moved")
            (tree / "a").symlink_to(tree.parent / "home")
        return open_now(path, flags, **options)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(StorageError, match=r"cannot remove .*tree/a: "):
        remove_tree(tree)
    assert_home_is_whole(tree)


@pytest.mark.parametrize("remove", [remove_tree, remove_locked_folder])
def test_a_folder_with_a_mounted_file_system_stays_whole(remove, tree, monkeypatch):
    before = sorted(tree.rglob("*"))
    monkeypatch.setattr(removal, "mounts_below", lambda folder: [str(tree / "a" / "b")])
    with pytest.raises(StorageError, match=rf"{tree} is not removed: another file system is mounted at {tree}/a/b; "):
        remove(tree)
    assert sorted(tree.rglob("*")) == before


def test_another_device_is_not_entered_where_there_is_no_table_of_mounts(tree, monkeypatch):
    stat_now = os.stat

    def stat_of_another_device(path, **options):
        status = stat_now(path, **options)
        return os.stat_result((*status[:2], status.st_dev + 1, *status[3:])) if path == "b" else status

    monkeypatch.setattr(os, "stat", stat_of_another_device)
    with pytest.raises(StorageError, match=r"another file system is mounted at .*tree/a/b; unmount it first"):
        remove_tree(tree)
    assert (tree / "a" / "b" / "file").exists()


def test_mounts_are_those_at_or_below_a_folder(tmp_path):
    table = tmp_path / "mountinfo"
    points = ["/", str(tmp_path), str(tmp_path / "a b" / "c"), f"{tmp_path}-other"]
    table.write_text(
        "".join(f"1 2 8:0 / {point} rw - ext4 x rw\n".replace("a b", "a\\040b") for point in points), encoding="utf-8"
    )
    assert mounts_below(tmp_path, table) == [str(tmp_path), str(tmp_path / "a b" / "c")]
    assert mounts_below(tmp_path / "a b", table) == [str(tmp_path / "a b" / "c")]
    assert mounts_below(tmp_path / "absent", table) == mounts_below(tmp_path, tmp_path / "no table") == []


def test_only_files_of_this_user_are_its_own(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    assert is_own(tmp_path / "mine", stat.S_ISDIR) and not is_own(tmp_path / "mine", stat.S_ISREG)
    assert has_only_files(tmp_path / "mine") and not has_only_files(tmp_path)
    assert not has_only_files(tmp_path / "mine", lambda name: name == "other")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert not is_own(tmp_path / "link", stat.S_ISDIR) and not has_only_files(tmp_path / "link")
    assert not is_own(tmp_path / "absent", stat.S_ISDIR)
    (tmp_path / "mine" / "link").symlink_to("file")
    assert not has_only_files(tmp_path / "mine")
    if not os.geteuid():
        (tmp_path / "mine" / "link").unlink()
        os.chown(tmp_path / "mine" / "file", 12345, 12345)
        assert not has_only_files(tmp_path / "mine")
