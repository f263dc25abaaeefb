"""Scratch: space is reserved at the start, no name refers to it, and nothing remains of a killed process."""

import errno
import os
import resource
import signal
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from held import hold_in_child

from hornbook.errors import StorageError
from hornbook.storage.scratch import ScratchFile, require_scratch

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(params=["O_TMPFILE", "a name for an instant"])
def folder(request, tmp_path, monkeypatch):
    """A folder on a file system with and without files that never had a name."""
    if request.param != "O_TMPFILE":
        monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", False)
    return tmp_path


@contextmanager
def written_scratch(folder):
    ScratchFile(folder).reserve(1 << 22)
    yield


def test_pieces_come_back_and_show_in_the_map(folder):
    file = ScratchFile(folder)
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
    assert os.fstat(file.descriptor).st_size == 1 << 20
    file.close()


def test_space_is_really_reserved(tmp_path):
    file = ScratchFile(tmp_path)
    file.reserve(1 << 22)
    assert os.fstat(file.descriptor).st_blocks * 512 >= 1 << 22
    file.close()


def test_no_other_user_can_open_it(folder):
    file = ScratchFile(folder)
    status = os.fstat(file.descriptor)
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o600, os.geteuid(), 0)
    file.close()


def test_its_folder_stays_as_it_is(folder):
    """Whatever it contains: folders and links with names like those of scratch."""
    target = folder / "home"
    target.mkdir()
    (target / "thesis.tex").write_text("mine")
    for name in ("scratch-00000", "scratch-2024", "hornbook-scratch-00000"):
        (folder / name).symlink_to(target)
    (folder / "scratch-1").mkdir()
    (folder / "scratch-1" / "chapter1.txt").write_text("mine")
    before = sorted(folder.rglob("*"))
    file = ScratchFile(folder)
    file.reserve(1 << 20)
    assert sorted(folder.rglob("*")) == before
    file.close()
    assert sorted(folder.rglob("*")) == before and (target / "thesis.tex").read_text() == "mine"


def test_nothing_remains_of_a_killed_process(folder):
    child = hold_in_child(written_scratch(folder))
    assert list(folder.iterdir()) == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert list(folder.iterdir()) == []


def test_too_little_space_is_reported_before_anything_is_written(tmp_path):
    with pytest.raises(StorageError) as caught:
        require_scratch(tmp_path / "new", 1 << 60)
    message = str(caught.value)
    assert message.startswith(f"phased execution needs 1048576.0 TiB of scratch in {tmp_path / 'new'}, which has ")
    assert message.endswith("free; free some space, or choose another folder with `memory.scratch`")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_grow_says_so(tmp_path):
    file, (soft, hard) = ScratchFile(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot reserve scratch in .*: File too large \(3.0 MiB more"):
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
        ScratchFile(tmp_path)
    assert str(caught.value) == (
        f"the file system of {tmp_path} lacks pread, pwrite or mmap of files without a name, which scratch files need "
        "([Errno 29] Illegal seek); choose another folder with `memory.scratch`"
    )


def test_a_file_that_was_cut_off_says_so(tmp_path):
    file = ScratchFile(tmp_path)
    os.ftruncate(file.descriptor, 10)
    with pytest.raises(StorageError, match="ends before byte 30: it was changed while it was in use"):
        file.read(memoryview(bytearray(30)), 0)


def test_the_default_is_the_systems_folder_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(StorageError, match=r"cannot create scratch in .*absent"):
        ScratchFile()
    with pytest.raises(StorageError, match=r"cannot create scratch in .*other"):
        ScratchFile(Path(tmp_path / "other"))
