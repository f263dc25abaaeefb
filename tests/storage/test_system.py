import errno
import fcntl
import os

import pytest

from hornbook.errors import DataError, PathError, StorageError
from hornbook.storage import system as module
from hornbook.storage.files import write_file
from hornbook.storage.new_files import open_partial
from hornbook.storage.system import (
    cpu_quota,
    flush_to_disk,
    format_bytes,
    free_bytes,
    open_regular,
    process_is_alive,
    storage_errors,
    usable_cores,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (2 << 30, "2.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_are_for_people(size, text):
    assert format_bytes(size) == text


def test_free_bytes_are_those_of_the_disk_that_will_hold_a_path(tmp_path):
    status = os.statvfs(tmp_path)
    assert free_bytes(tmp_path / "not" / "yet" / "there") == pytest.approx(status.f_bavail * status.f_frsize, rel=0.05)


def test_an_error_of_the_system_becomes_one_line(tmp_path):
    with pytest.raises(StorageError) as caught, storage_errors("read", tmp_path):
        (tmp_path / "missing").stat()
    assert str(caught.value).startswith(f"cannot read {tmp_path}: No such file or directory; ")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to(tmp_path / "pipe")
    with open_regular(tmp_path / "file", follow=False) as file, open_regular(tmp_path / "link") as linked:
        assert file.read() == linked.read() == b"content"
    for name in ("pipe", "link to a pipe"):
        with pytest.raises(DataError, match="is not a regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(DataError, match="link is a link; expected a file of the run itself"):
        open_regular(tmp_path / "link", follow=False)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing", follow=False)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_are_alive_or_ended():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert process_is_alive(1)
    assert process_is_alive(os.getppid())
    assert not process_is_alive(child)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 10**12])
def test_impossible_process_ids_are_not_alive(pid):
    assert not process_is_alive(pid)


def test_the_own_process_id_counts_as_ended():
    assert not process_is_alive(os.getpid())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *((name, 2) for name in ("ENOENT", "ENOTDIR", "EEXIST", "EISDIR", "ENAMETOOLONG", "ELOOP")),
        *((name, 2) for name in ("EACCES", "EPERM", "EROFS")),
        *((name, 1) for name in ("ENOSPC", "EDQUOT", "EIO", "ENOMEM", "ESTALE", "ENOTEMPTY", "EMFILE")),
    ],
)
def test_another_attempt_helps_a_disk_and_no_path(tmp_path, name, code):
    number = getattr(errno, name)
    with pytest.raises(StorageError) as caught, storage_errors("read", tmp_path):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == code and isinstance(caught.value, PathError) == (code == 2)
    assert os.strerror(number) in str(caught.value)


FULL_FSYNC = 51


@pytest.fixture
def synced(monkeypatch):
    """What is asked of the disk, on a system that knows F_FULLFSYNC."""
    asked = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_FSYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: asked.append(command))
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append("fsync"))
    return asked


def test_where_fsync_stops_at_the_drive_the_drive_is_asked(synced, tmp_path):
    write_file(tmp_path / "x", b"1")
    assert synced == [FULL_FSYNC]
    with open_partial(tmp_path / "y") as partial:
        partial.write(b"1")
        partial.commit()
    assert set(synced) == {FULL_FSYNC}


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_that_refuses_gets_an_fsync(synced, monkeypatch, number):
    def refuse(descriptor, command):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    flush_to_disk(0)
    assert synced == ["fsync"]


def test_a_disk_that_failed_is_not_asked_again(synced, monkeypatch):
    def fail(descriptor, command):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "fcntl", fail)
    with pytest.raises(OSError, match="Input/output"):
        flush_to_disk(0)
    assert synced == []


def test_elsewhere_it_is_an_fsync(synced, monkeypatch):
    monkeypatch.delattr(fcntl, "F_FULLFSYNC")
    flush_to_disk(0)
    assert synced == ["fsync"]


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("150000 100000\n", 1),
        ("50000 100000\n", 1),
        ("400000 100000\n", 4),
        ("max 100000\n", None),
        ("", None),
        (None, None),
    ],
)
def test_a_containers_quota(tmp_path, text, cores):
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path / "cpu.max") == (cores or os.cpu_count())


@pytest.mark.parametrize(("may_run_on", "quota", "cores"), [(8, 64, 8), (8, 2, 2), (1, 1, 1)])
def test_cores_are_bounded_by_the_quota_and_by_where_a_process_may_run(monkeypatch, may_run_on, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(may_run_on)), raising=False)
    monkeypatch.setattr(module, "cpu_quota", lambda: quota)
    assert usable_cores() == cores


def test_if_the_system_reports_none_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(module, "cpu_quota", lambda: 12)
    assert usable_cores() == 12
