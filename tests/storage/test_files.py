import hashlib
import os
import re
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from crashes import crashes_in_child

from hornbook.errors import HornbookError, PathError, StorageError
from hornbook.storage.faults import count_operations, inject
from hornbook.storage.files import (
    Appender,
    FileWriter,
    Written,
    commit_directory,
    make_directory,
    refuse_file,
    rename,
    replace_file,
    sha256_file,
    write_file,
)
from hornbook.storage.removal import remove_file, remove_tree

DEAD_PID = 2**31 - 2  # above the kernel's largest


def one_line(error: pytest.ExceptionInfo[HornbookError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"", b""),
        (b"abc", b"abc"),
        (bytearray(b"abc"), b"abc"),
        ([], b""),
        ([b"a", b"", memoryview(b"bc")], b"abc"),
        (iter([b"abc"]), b"abc"),
        (memoryview(np.arange(6, dtype=np.uint16).reshape(2, 3)), np.arange(6, dtype=np.uint16).tobytes()),
        (memoryview(np.zeros((0, 3))), b""),
    ],
)
def test_write_file_writes_and_hashes(tmp_path, data, content):
    written = write_file(tmp_path / "x", data)
    assert (tmp_path / "x").read_bytes() == content
    assert written == Written(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    assert sha256_file(tmp_path / "x") == written.sha256


def test_write_file_overwrites_a_longer_file(tmp_path):
    write_file(tmp_path / "x", b"long content")
    write_file(tmp_path / "x", b"short")
    assert (tmp_path / "x").read_bytes() == b"short"


@pytest.mark.parametrize(("operation", "n"), [("open", 1), ("write", 1), ("write", 2), ("fsync", 1)])
def test_a_failed_write_is_reported_in_one_line_and_leaves_no_file(tmp_path, operation, n):
    with inject(operation, n, "eio"), pytest.raises(StorageError) as caught:
        write_file(tmp_path / "x", [b"a", b"b"])
    assert str(tmp_path / "x") in one_line(caught)
    assert not (tmp_path / "x").exists()


def test_a_failed_fsync_is_not_tried_again(tmp_path):
    with inject("fsync", 1, "eio"), count_operations() as operations, pytest.raises(StorageError):
        write_file(tmp_path / "x", b"a")
    assert [name for name, _ in operations] == ["open", "write", "fsync", "unlink"]


def test_a_full_disk_is_reported_with_the_needed_and_the_free_space(tmp_path):
    with Appender(Path("/dev/full"), truncate=True) as log, pytest.raises(StorageError) as caught:
        log.append("x" * (3 << 20))
    assert "No space left on device (3.0 MiB more needed, " in one_line(caught)
    assert " free)" in str(caught.value)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_no_link_leads_a_new_file_elsewhere(tmp_path, link):
    (tmp_path / "mine").write_bytes(b"mine")
    for number, write in enumerate((write_file, replace_file)):
        link(tmp_path / f"{number}", tmp_path / "mine")
        write(tmp_path / f"{number}", b"theirs")
        assert (tmp_path / f"{number}").read_bytes() == b"theirs"
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_what_is_no_file_is_not_removed_for_a_new_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PathError, match="pipe: File exists"):
        write_file(tmp_path / "pipe", b"a")
    assert (tmp_path / "pipe").is_fifo()


def test_nobody_can_guess_the_name_of_a_temporary_file(tmp_path):
    seen = set()
    for _ in range(2):
        with count_operations() as operations:
            replace_file(tmp_path / "x", b"a")
        seen |= {path.name for name, path in operations if name == "open"}
    assert len(seen) == 2 and all(re.fullmatch(rf"\.x\.tmp-{os.getpid()}-[0-9a-f]{{8}}", name) for name in seen)


@pytest.mark.parametrize("limit", [0, 1, 999, 1000, 4095, 4096, 4097, 7999])
def test_a_file_that_the_kernel_cuts_short_is_an_error(tmp_path, limit):
    """A real limit, not an injected one: the kernel takes a part of a write and refuses the rest."""

    def write_under_limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(StorageError, match="File too large"):
            write_file(tmp_path / "x", [bytes(1000)] * 8)

    assert not crashes_in_child(write_under_limit, "any", 1000, "crash-before")
    assert not (tmp_path / "x").exists()


def test_an_error_of_the_source_passes_through_and_leaves_no_file(tmp_path):
    def chunks():
        yield b"a"
        raise ConnectionError("the source broke")

    with pytest.raises(ConnectionError, match="the source broke"):
        write_file(tmp_path / "x", chunks())
    assert not (tmp_path / "x").exists()


def test_a_writer_reports_what_it_wrote_and_is_durable_at_the_end(tmp_path):
    with count_operations() as operations, FileWriter(tmp_path / "x") as writer:
        writer.write(b"ab")
        writer.write(b"c")
        assert writer.written.size == 3
    assert writer.written == Written(size=3, sha256=hashlib.sha256(b"abc").hexdigest())
    assert operations[-1].name == "fsync"


def test_replace_file_meets_old_or_new_at_every_crash_point(tmp_path):
    path = tmp_path / "x"
    write_file(path, b"old")
    seen = set()
    for kind in ("crash-before", "crash-after"):
        n = 1
        while crashes_in_child(lambda: replace_file(path, b"new!"), "any", n, kind):
            seen.add(path.read_bytes())
            write_file(path, b"old")
            n += 1
        assert n > 5
        assert names(tmp_path) == ["x"]  # the run without a fault removed what the others left
        write_file(path, b"old")
    assert seen == {b"old", b"new!"}


@pytest.mark.parametrize("kind", ["enospc", "eio", "erofs", "edquot"])
@pytest.mark.parametrize("lasting", [False, True])
def test_replace_file_that_fails_leaves_the_old_content(tmp_path, kind, lasting):
    path = tmp_path / "x"
    write_file(path, b"old")
    for operation in ("open", "write", "fsync", "rename"):
        with inject(operation, 1, kind, lasting=lasting), pytest.raises(StorageError) as caught:
            replace_file(path, b"new")
        assert str(tmp_path) in one_line(caught)
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["x"]


def test_replace_file_removes_the_litter_of_dead_processes_alone(tmp_path):
    others = [
        f".x.tmp-{DEAD_PID}",
        ".x.tmp-1-0123abcd",
        ".x.tmp-abc",
        f".x.tmp-{DEAD_PID}-a",
        f".y.tmp-{DEAD_PID}-0123abcd",
    ]
    for name in (f".x.tmp-{DEAD_PID}-0123abcd", *others):
        (tmp_path / name).touch()
    (tmp_path / f".x.tmp-{DEAD_PID}-11111111").mkdir()
    (tmp_path / f".x.tmp-{DEAD_PID}-22222222").symlink_to("x")
    others += [f".x.tmp-{DEAD_PID}-11111111", f".x.tmp-{DEAD_PID}-22222222"]
    if not os.geteuid():
        (tmp_path / f".x.tmp-{DEAD_PID}-33333333").touch()
        os.chown(tmp_path / f".x.tmp-{DEAD_PID}-33333333", 12345, 12345)
        others += [f".x.tmp-{DEAD_PID}-33333333"]
    replace_file(tmp_path / "x", b"new")
    assert names(tmp_path) == sorted([*others, "x"])


def test_lines_are_appended_whole(tmp_path):
    path = tmp_path / "log"
    with Appender(path) as appender:
        appender.append("first")
        appender.append("zweite ü")
        assert path.read_text() == "first\nzweite ü\n"
        appender.sync()
    with Appender(path) as appender:
        appender.append("third")
    assert path.read_text() == "first\nzweite ü\nthird\n"


@pytest.mark.parametrize("torn", ["x", "x" * 200_000, ""])
@pytest.mark.parametrize("before", ["", "one\n", "one\ntwo\n"])
def test_a_truncated_last_line_is_removed_when_a_log_is_opened(tmp_path, before, torn):
    (tmp_path / "log").write_text(before + torn)
    with Appender(tmp_path / "log") as appender:
        appender.append("next")
    assert (tmp_path / "log").read_text() == before + "next\n"


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
    with Appender(tmp_path / "log") as appender:
        appender.append("one")
        with inject("write", 1, "short-write"), inject("write", 2, "enospc"), pytest.raises(StorageError) as caught:
            appender.append("a line that is cut in the middle")
        assert "append to" in one_line(caught)
        appender.append("two")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def make_link(path, target):
    path.symlink_to(target)


def make_another_name(path, target):
    path.hardlink_to(target)


def make_pipe(path, target):
    os.mkfifo(path)


@pytest.mark.parametrize("make", [make_link, make_another_name, make_pipe])
def test_a_log_that_leads_elsewhere_is_refused(tmp_path, make):
    """As in a folder of a stranger, whose `metrics.jsonl` is a link to a file of the user's."""
    (tmp_path / "mine").write_bytes(b"mine, without a line end")
    make(tmp_path / "log", tmp_path / "mine")
    with pytest.raises(PathError, match="log: expected a regular file with one name") as caught:
        Appender(tmp_path / "log")
    one_line(caught)
    assert (tmp_path / "mine").read_bytes() == b"mine, without a line end"


def test_a_restarted_log_is_written_to_the_target_of_its_path(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    with Appender(tmp_path / "link", truncate=True) as log:
        log.append("new")
        log.sync()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"new\n"


def test_a_pipe_takes_a_log_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with Appender(tmp_path / "pipe", truncate=True) as log:
        log.append("a line")
        log.sync()
    assert os.read(reader, 99) == b"a line\n" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


def test_a_closed_log_may_be_closed_again(tmp_path):
    appender = Appender(tmp_path / "log")
    appender.close()
    appender.close()
    assert (tmp_path / "log").read_bytes() == b""


def test_a_folder_is_committed_with_its_folders_and_its_parent_synced(tmp_path):
    temporary, final = tmp_path / "x.tmp", tmp_path / "x"
    make_directory(temporary / "train")
    write_file(temporary / "train" / "a", b"1")
    with count_operations() as operations:
        commit_directory(temporary, final)
    assert operations == [("fsync", temporary / "train"), ("fsync", temporary), ("rename", final), ("fsync", tmp_path)]
    assert (final / "train" / "a").read_bytes() == b"1"


def test_a_folder_is_not_committed_over_another(tmp_path):
    for name in ("x", "x.tmp"):
        make_directory(tmp_path / name)
    with pytest.raises(PathError, match="exists already"):
        commit_directory(tmp_path / "x.tmp", tmp_path / "x")


def test_folders_are_made_with_their_parents_durably(tmp_path):
    with count_operations() as operations:
        make_directory(tmp_path / "a" / "b")
    a, b = tmp_path / "a", tmp_path / "a" / "b"
    assert operations == [("open", a), ("fsync", tmp_path), ("open", b), ("fsync", a)]
    with count_operations() as operations:
        make_directory(b)
    assert operations == []


def test_a_folder_that_must_be_new_is_refused(tmp_path):
    with pytest.raises(StorageError, match="File exists"):
        make_directory(tmp_path, exist_ok=False)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    refuse_file(tmp_path / "x" / "y", writes=True)
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK | os.X_OK))
    for path in (tmp_path, tmp_path / "x" / "y"):
        with pytest.raises(PathError, match=f"^{tmp_path} is not writable: choose another `output`"):
            refuse_file(path, writes=True)
        refuse_file(path)


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    write_file(tmp_path / "x", b"")
    for name in ("x/y", "x/y/z", "x" * 300, "x" * 300 + "/y"):
        with pytest.raises(PathError, match="cannot create the folder"):
            make_directory(tmp_path / name)


def test_a_rename_into_another_folder_syncs_both(tmp_path):
    make_directory(tmp_path / "a")
    write_file(tmp_path / "x", b"1")
    with count_operations() as operations:
        rename(tmp_path / "x", tmp_path / "a" / "y")
    assert [path for name, path in operations if name == "fsync"] == [tmp_path / "a", tmp_path]


def test_a_tree_is_removed_but_never_what_its_links_point_to(tmp_path):
    for name in ("inside/deep", "outside"):
        make_directory(tmp_path / name)
        write_file(tmp_path / name / "file", b"1")
    (tmp_path / "inside" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "inside" / "broken").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    for name in ("inside", "link", "missing"):
        remove_tree(tmp_path / name)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["outside", "outside/file"]


def test_what_cannot_be_removed_is_reported(tmp_path):
    make_directory(tmp_path / "a")
    with inject("unlink", 1, "eacces"), pytest.raises(StorageError, match="Permission denied"):
        remove_tree(tmp_path / "a")
    with pytest.raises(StorageError, match="remove"):
        remove_file(tmp_path / "a")
    remove_file(tmp_path / "missing")


def test_a_file_that_cannot_be_read_is_reported():
    with pytest.raises(StorageError, match="there is no folder /missing; check the path"):
        sha256_file(Path("/missing/file"))
