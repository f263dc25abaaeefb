import fcntl
import gc
import os
import shutil
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from held import hold_in_child

from hornbook.errors import PathError, StorageError, UserError
from hornbook.storage import faults, removal
from hornbook.storage import files as module
from hornbook.storage.files import lock_folder
from hornbook.storage.new_files import new_folder
from hornbook.storage.removal import remove_locked_folder
from hornbook.storage.system import is_locked

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_a_second_process_is_refused_in_one_line_that_names_the_first(tmp_path):
    child = hold_in_child(lock_folder(tmp_path))
    try:
        with pytest.raises(UserError) as caught, lock_folder(tmp_path):
            pass
        assert f"({child})" in str(caught.value)
        assert "\n" not in str(caught.value)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    child = hold_in_child(lock_folder(tmp_path))
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


def test_work_that_fails_before_it_writes_leaves_no_lock_and_no_folder(tmp_path):
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "new" / "deep" / "work", tmp_path / "there"):
        with pytest.raises(KeyError), lock_folder(folder):
            raise KeyError("refused")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_work_that_fails_after_it_has_written_leaves_its_folder(tmp_path):
    with pytest.raises(KeyError), lock_folder(tmp_path / "work"):
        (tmp_path / "work" / "file").touch()
        raise KeyError("failed")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"lock", "file"}
    with pytest.raises(KeyError), lock_folder(tmp_path / "work"):
        raise KeyError("again")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"lock", "file"}


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"), lock_folder(tmp_path / "file"):
        pass


def test_a_lock_that_cannot_be_opened_is_reported(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(StorageError, match="cannot open"), lock_folder(tmp_path):
        pass


def let_others_end(monkeypatch, owner, name, folder, times):
    """Before each of the first calls of a function, let another process end, which removes the folder."""
    original, calls = getattr(owner, name), []

    def wrapped(*arguments):
        calls.append(arguments)
        if len(calls) <= times:
            shutil.rmtree(folder)
        return original(*arguments)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


def holds(folder):
    """Whether nobody else can lock a folder."""
    with pytest.raises(UserError, match="in use"), lock_folder(folder):
        pass
    return (folder / "lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_is_of_the_file_that_others_meet(tmp_path, monkeypatch):
    calls = let_others_end(monkeypatch, fcntl, "flock", tmp_path / "work", 2)
    with lock_folder(tmp_path / "work"):
        assert len(calls) == 3 and holds(tmp_path / "work")


def test_a_folder_that_is_removed_before_its_lock_is_opened_is_created_again(tmp_path, monkeypatch):
    original = module.make_directory

    def make_directory(folder):
        original(folder)
        folder.rmdir()
        monkeypatch.setattr(module, "make_directory", original)

    monkeypatch.setattr(module, "make_directory", make_directory)
    with lock_folder(tmp_path / "work"):
        assert holds(tmp_path / "work")


def test_a_lock_of_another_file_of_the_same_name_does_not_count(tmp_path, monkeypatch):
    original = fcntl.flock

    def flock(*arguments):
        monkeypatch.setattr(fcntl, "flock", original)
        (tmp_path / "lock").rename(tmp_path / "former")
        (tmp_path / "lock").touch()
        original(*arguments)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path):
        assert holds(tmp_path)
    assert (tmp_path / "former").read_text() == ""


def test_taking_a_lock_ends(tmp_path, monkeypatch):
    gc.collect()  # files that other tests have left open
    descriptors = len(list(Path("/dev/fd").iterdir()))
    let_others_end(monkeypatch, fcntl, "flock", tmp_path / "work", 10**6)
    with pytest.raises(StorageError, match="keep removing it; try again") as caught, lock_folder(tmp_path / "work"):
        pass
    assert caught.value.exit_code == 1 and len(list(Path("/dev/fd").iterdir())) == descriptors


def test_a_held_folder_is_removed_with_its_lock_last(tmp_path):
    folder = tmp_path / "work"
    with lock_folder(folder), faults.count_operations() as operations:
        (folder / "zeta").mkdir()
        (folder / "zeta" / "file").touch()
        remove_locked_folder(folder)
    assert [path.name for _, path in operations] == ["file", "zeta", "lock", "work"]
    assert not folder.exists()


def test_a_folder_that_another_process_has_by_then_stays(tmp_path, monkeypatch):
    folder, original = tmp_path / "work", removal.remove_file
    with ExitStack() as another, lock_folder(folder):

        def remove_file(path):
            original(path)
            another.enter_context(lock_folder(folder))

        monkeypatch.setattr(removal, "remove_file", remove_file)
        remove_locked_folder(folder)
        assert holds(folder)


def test_of_a_link_to_a_folder_the_link_is_removed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "work").symlink_to("elsewhere")
    with lock_folder(tmp_path / "work"):
        remove_locked_folder(tmp_path / "work")
    assert (tmp_path / "elsewhere" / "file").exists() and not (tmp_path / "work").is_symlink()


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_lock_that_leads_to_another_file_is_refused_and_leaves_it(tmp_path, link):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    link(tmp_path / "run" / "lock", tmp_path / "mine")
    with pytest.raises(PathError, match="lock: expected a regular file with one name"), lock_folder(tmp_path / "run"):
        raise AssertionError("locked")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_lock_can_be_asked_for_without_a_trace(tmp_path):
    folder = tmp_path / "run"
    assert not is_locked(folder)
    assert not folder.exists()
    with lock_folder(folder):
        assert is_locked(folder)
    assert not is_locked(folder)


def test_a_shared_lock_delays_a_start_but_does_not_fail_it(tmp_path):
    """A shared lock, as `is_locked` takes for a moment, makes a start wait and not fail."""
    folder = tmp_path / "run"
    with lock_folder(folder):
        pass
    asking = os.open(folder / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    timer = threading.Timer(0.002, os.close, [asking])
    timer.start()
    with lock_folder(folder):
        pass
    timer.join()


@pytest.mark.parametrize("content", ["mine", "12\n34\n", "1" * 40, " "])
def test_a_file_of_the_user_called_lock_is_not_overwritten(tmp_path, content):
    (tmp_path / "lock").write_text(content)
    with (
        pytest.raises(UserError, match="lock is not a lock file of hornbook; move it, or choose"),
        lock_folder(tmp_path),
    ):
        raise AssertionError("locked")
    assert (tmp_path / "lock").read_text() == content


@pytest.mark.parametrize("what", ["a folder", "a file", "a link", "a link to nothing", "another user's"])
def test_a_working_folder_that_hornbook_did_not_make_is_not_used(tmp_path, what):
    home, work = tmp_path / "home", tmp_path / ".out.converting"
    (home / "content").mkdir(parents=True)
    (home / "content" / "thesis.tex").write_text("mine")
    if what == "a folder":
        home.rename(work)
    elif what == "another user's":
        if os.geteuid():
            pytest.skip("only root can give a folder away")
        work.mkdir()
        (work / "lock").touch()
        os.chown(work, 12345, 12345)
    elif what == "a file":
        work.write_text("mine")
    else:
        work.symlink_to(home if what == "a link" else tmp_path / "nothing")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="converting was not made by hornbook for this user, so it is not used; move"):
        new_folder(tmp_path / "out").__enter__()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_working_folder_of_a_killed_process_is_used(tmp_path):
    for content in ([], ["lock"], ["lock", "content"]):
        (tmp_path / ".out.converting").mkdir()
        for name in content:
            (tmp_path / ".out.converting" / name).touch()
        with new_folder(tmp_path / "out") as folder:
            (folder / "new").touch()
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
        assert not (tmp_path / ".out.converting").exists()
        shutil.rmtree(tmp_path / "out")
