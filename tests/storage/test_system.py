import os

import pytest

from hornbook.errors import StorageError
from hornbook.storage.system import format_bytes, free_bytes, process_is_alive, translated


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
    with pytest.raises(StorageError) as caught, translated("read", tmp_path):
        (tmp_path / "missing").stat()
    assert str(caught.value).startswith(f"cannot read {tmp_path}: No such file or directory; ")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_are_alive_or_gone():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert process_is_alive(1)
    assert process_is_alive(os.getppid())
    assert not process_is_alive(child)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 10**12])
def test_numbers_that_no_process_has_are_gone(pid):
    assert not process_is_alive(pid)


def test_ones_own_number_counts_as_gone():
    assert not process_is_alive(os.getpid())
