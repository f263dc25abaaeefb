"""Scratch: room is taken at the start, one process holds it, and what a killed one left is removed."""

import errno
import os
import resource
import signal
from contextlib import contextmanager

import pytest
from held import hold_in_child

from hornbook.errors import StorageError, UserError
from hornbook.storage.scratch import ScratchFile, remove_leftovers, scratch_folder, scratch_path

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@contextmanager
def written_scratch(folder):
    with scratch_folder(folder, 1000):
        ScratchFile(folder / "state").reserve(100_000)
        yield


def test_pieces_come_back_and_show_in_the_map(tmp_path):
    file = ScratchFile(tmp_path / "state")
    file.reserve(1 << 20)
    with file.map() as view:
        assert bytes(view) == bytes(1 << 20)
        file.write(memoryview(b"abcdef"), 70_000)
        assert view[70_000:70_006] == b"abcdef"
        view[5:8] = b"xyz"
        back = bytearray(3)
        file.read(memoryview(back), 5)
    assert bytes(back) == b"xyz"
    assert (file.num_read, file.num_written, file.size) == (3, 6, 1 << 20)
    file.reserve(10)
    assert (tmp_path / "state").stat().st_size == 1 << 20
    file.close()


def test_room_is_really_taken(tmp_path):
    ScratchFile(tmp_path / "state").reserve(1 << 22)
    assert (tmp_path / "state").stat().st_blocks * 512 >= 1 << 22


def test_a_folder_is_gone_after_the_block(tmp_path):
    folder = scratch_path(tmp_path / "mine", 3)
    with scratch_folder(folder, 1000) as entered:
        assert entered == folder
        assert folder.name == "scratch-00003"
        ScratchFile(folder / "state")
    assert not folder.exists()
    with pytest.raises(ZeroDivisionError), scratch_folder(folder, 1000):
        raise ZeroDivisionError
    assert not folder.exists()


def test_a_second_process_is_refused_in_one_line(tmp_path):
    folder = scratch_path(tmp_path, 0)
    child = hold_in_child(written_scratch(folder))
    try:
        with pytest.raises(UserError, match=rf"{folder} is in use by another process \({child}\)"):
            scratch_folder(folder, 1000).__enter__()
        remove_leftovers(tmp_path)
        assert (folder / "state").exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("how", ["by the next to start", "by the next to hold it"])
def test_what_a_killed_process_left_is_removed(how, tmp_path):
    folder = scratch_path(tmp_path, 0)
    child = hold_in_child(written_scratch(folder))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (folder / "state").stat().st_size == 100_000
    (tmp_path / "scratch-notes").mkdir()
    (tmp_path / "scratch-notes" / "mine").write_text("stays")
    if how == "by the next to start":
        remove_leftovers(tmp_path)
        assert not folder.exists()
    else:
        with scratch_folder(folder, 1000):
            assert [path.name for path in folder.iterdir()] == ["lock"]
    assert (tmp_path / "scratch-notes" / "mine").exists()


def test_too_little_room_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(StorageError) as caught:
        scratch_folder(scratch_path(tmp_path, 0), 1 << 60).__enter__()
    assert str(caught.value).startswith(f"phased execution needs 1048576.0 TiB of scratch in {tmp_path}, which has ")
    assert str(caught.value).endswith("free; free some space, or choose another folder with `memory.scratch`")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_grow_says_so(tmp_path):
    file, (soft, hard) = ScratchFile(tmp_path / "state"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot reserve scratch in .*state: File too large \(3.0 MiB more"):
            file.reserve((3 << 20) + file.size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("call", ["pwrite", "preadv"])
def test_a_file_system_without_writes_at_offsets_is_refused(call, tmp_path, monkeypatch):
    """None on a developer's machine is like that, so the system call refuses as such a file system would."""

    def refuse(*given):
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageError) as caught:
        ScratchFile(tmp_path / "state")
    assert str(caught.value) == (
        f"the file system of {tmp_path} lacks pread, pwrite or mmap, which scratch files need ([Errno 29] Illegal "
        "seek); choose another folder with `memory.scratch`"
    )


def test_a_file_that_was_cut_off_says_so(tmp_path):
    file = ScratchFile(tmp_path / "state")
    os.truncate(tmp_path / "state", 10)
    with pytest.raises(StorageError, match="ends before byte 30: it was changed while it was in use"):
        file.read(memoryview(bytearray(30)), 0)


def test_a_nameless_file_is_not_in_its_folder(tmp_path):
    file = ScratchFile.nameless(tmp_path)
    file.reserve(1 << 20)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match=r"cannot create scratch in .*absent"):
        ScratchFile.nameless(tmp_path / "absent")
