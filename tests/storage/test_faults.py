import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from crashes import crashes_in_child

from hornbook.errors import StorageError, UserError
from hornbook.storage.faults import (
    CRASH_STATUS,
    KINDS,
    Fault,
    Operation,
    count_operations,
    inject,
    parse_fault,
)
from hornbook.storage.files import write_file

ERRNOS = {
    "enospc": errno.ENOSPC,
    "eio": errno.EIO,
    "edquot": errno.EDQUOT,
    "erofs": errno.EROFS,
    "eacces": errno.EACCES,
}
WRITE = f"from pathlib import Path; from {write_file.__module__} import write_file; write_file(Path('x'), b'12345678')"


def test_a_fault_is_read_from_its_text():
    assert parse_fault("write:3:enospc") == Fault(operation="write", n=3, kind="enospc")
    assert parse_fault("any:12+:crash-after") == Fault(operation="any", n=12, kind="crash-after", lasting=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "write",
        "write:1",
        "write:0:eio",
        "write:-1:eio",
        "write:x:eio",
        "read:1:eio",
        "write:1:bang",
        "write:1++:eio",
        "any:1:short-write",
        "fsync:1:crash-middle",
        "write:٣:eio",
        "write:9999999999999:eio",
    ],
)
def test_a_fault_that_could_never_strike_is_refused_in_one_line(text):
    with pytest.raises(UserError, match="HORNBOOK_FAULT") as caught:
        parse_fault(text)
    assert "\n" not in str(caught.value)


def test_operations_are_counted_in_their_order(tmp_path):
    path = tmp_path / "x"
    with count_operations() as operations:
        write_file(path, [b"a", b"b"])
    assert operations == [Operation(name, path) for name in ("open", "write", "write", "fsync")]
    write_file(path, b"more")
    assert len(operations) == 4


@pytest.mark.parametrize("kind", ERRNOS)
@pytest.mark.parametrize(("operation", "n"), [("open", 1), ("write", 2), ("fsync", 1), ("any", 4)])
def test_an_error_strikes_once_at_the_nth_operation(tmp_path, operation, n, kind):
    with inject(operation, n, kind) as struck:
        assert not struck()
        with pytest.raises(StorageError) as caught:
            write_file(tmp_path / "x", [b"a", b"b"])
        assert struck()
        write_file(tmp_path / "x", [b"a", b"b"])
    assert caught.value.__cause__.errno == ERRNOS[kind]


def test_a_lasting_error_strikes_from_the_nth_operation_on(tmp_path):
    with inject("write", 2, "enospc", lasting=True):
        write_file(tmp_path / "x", b"a")
        for _ in range(3):
            with pytest.raises(StorageError):
                write_file(tmp_path / "x", b"a")
    write_file(tmp_path / "x", b"a")


def test_a_short_write_is_continued(tmp_path):
    with inject("write", 1, "short-write"), count_operations() as operations:
        write_file(tmp_path / "x", b"12345678")
    assert (tmp_path / "x").read_bytes() == b"12345678"
    assert [name for name, _ in operations].count("write") == 2


@pytest.mark.parametrize(
    ("fault", "content"),
    [("write:1:crash-before", b""), ("write:1:crash-middle", b"1234"), ("write:1:crash-after", b"12345678")],
)
def test_the_environment_lets_a_process_die_at_a_write(tmp_path, fault, content):
    environment = {**os.environ, "HORNBOOK_FAULT": fault}
    ended = subprocess.run([sys.executable, "-c", WRITE], cwd=tmp_path, env=environment, check=False)
    assert ended.returncode == CRASH_STATUS
    assert (tmp_path / "x").read_bytes() == content


def test_a_wrong_fault_in_the_environment_is_reported_at_the_first_operation(tmp_path):
    environment = {**os.environ, "HORNBOOK_FAULT": "wrong"}
    ended = subprocess.run(
        [sys.executable, "-c", WRITE], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    assert "UserError: HORNBOOK_FAULT" in ended.stderr


def test_a_child_dies_before_or_after_every_operation_and_then_no_more(tmp_path):
    path = tmp_path / "x"
    states = []
    for n in range(1, 4):
        for kind in ("crash-before", "crash-after"):
            path.unlink(missing_ok=True)
            assert crashes_in_child(lambda: write_file(path, b"ab"), "any", n, kind)
            states.append(path.read_bytes() if path.exists() else None)
    assert states == [None, b"", b"", b"ab", b"ab", b"ab"]
    assert not crashes_in_child(lambda: write_file(path, b"ab"), "any", 4, "crash-before")


def test_other_failures_of_a_child_are_distinguished(tmp_path, capfd):
    with pytest.raises(AssertionError, match="ended with 1"):
        crashes_in_child(lambda: write_file(tmp_path / "missing" / "x", b""), "any", 2, "crash-before")
    assert "PathError" in capfd.readouterr().err


def test_every_kind_is_known():
    assert {*ERRNOS, "crash-before", "crash-middle", "crash-after", "short-write"} == set(KINDS)


def test_paths_are_recorded_as_paths(tmp_path):
    with count_operations() as operations:
        write_file(tmp_path / "x", b"")
    assert all(isinstance(path, Path) for _, path in operations)
