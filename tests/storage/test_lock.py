import os
import signal
import time

import pytest

from hornbook.errors import StorageError, UserError
from hornbook.storage.lock import lock_folder

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def hold_in_child(folder) -> int:
    """Fork a child that holds the lock until it is killed; return its number once it does."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with lock_folder(folder):
                os.write(tell, b"!")
                time.sleep(60)
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(ready, 1) == b"!"
    os.close(ready)
    return child


def test_a_second_process_is_refused_in_one_line_that_names_the_first(tmp_path):
    child = hold_in_child(tmp_path)
    try:
        with pytest.raises(UserError) as caught, lock_folder(tmp_path):
            pass
        assert f"({child})" in str(caught.value)
        assert "\n" not in str(caught.value)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    child = hold_in_child(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with lock_folder(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_is_held_inside_the_block_and_free_after_it(tmp_path):
    folder = tmp_path / "new" / "run"
    for _ in range(2):
        with lock_folder(folder):
            with pytest.raises(UserError, match=str(os.getpid())), lock_folder(folder):
                pass
            with pytest.raises(UserError), lock_folder(folder):
                pass


def test_the_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), lock_folder(tmp_path):
        raise KeyError("inside")
    with lock_folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"), lock_folder(tmp_path / "file"):
        pass


def test_a_lock_that_cannot_be_opened_is_told(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(StorageError, match="cannot open"), lock_folder(tmp_path):
        pass
