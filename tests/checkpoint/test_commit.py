"""What becomes of checkpoints when the process dies, the disk fills or the power goes while they are saved."""

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from cases import mostly_slow
from crashes import crashes_in_child
from tiny_checkpoints import assert_equal, assert_sound, contents, names, one_line, saved

from hornbook.checkpoint import Contents, list_checkpoints, load, newest_sound, prune, save
from hornbook.errors import CheckpointError, StorageError, UserError
from hornbook.storage import system
from hornbook.storage.faults import Operation, count_operations, inject

DEAD_PID = 2**31 - 2
TENSORS = {"model-00000.safetensors", "optimizer-00000.safetensors"}
FILES = {*TENSORS, "state.json", "recipe.json", "tokenizer.json", "manifest.json"}


def no_warning(message: str) -> None:
    raise AssertionError(message)


AROUND = (("any", "crash-before"), ("any", "crash-after"))
INSIDE = (("write", "crash-middle"),)


def every_crash(prepare: Callable[[], Path], action: Callable[[Path], object], deaths=AROUND + INSIDE, stride=1):
    """Run ``action`` on what ``prepare`` makes, dying at every point of it; yields (folder, where it died)."""
    for operation, kind in deaths:
        n = 1
        while crashes_in_child(partial(action, folder := prepare()), operation, n, kind):
            yield folder, f"{operation}:{n}:{kind}"
            n += stride
        assert n > 10, f"{operation}:{kind} struck {n // stride} times"


@pytest.fixture
def fresh(tmp_path) -> Callable[..., Path]:
    """Makes a new folder with sound checkpoints of the given steps, copied from one that was saved once."""
    saved(tmp_path / "original", 5, 10, 15, 20)
    trials = iter(range(10**6))

    def make(*steps: int) -> Path:
        folder = tmp_path / str(next(trials))
        folder.mkdir()
        for step in steps:
            name = f"step-{step:08d}"
            shutil.copytree(tmp_path / "original" / name, folder / name)
        return folder

    return make


def test_what_is_saved_is_loaded(tmp_path):
    path = save(tmp_path / "run" / "checkpoints", contents(5))
    assert path == tmp_path / "run" / "checkpoints" / "step-00000005"
    assert set(names(path)) == FILES
    assert_equal(load(path), contents(5))


def test_equal_contents_give_equal_bytes(tmp_path):
    paths = [*saved(tmp_path / "a", 5), *saved(tmp_path / "b", 5)]
    for name in FILES:
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes()


def test_a_checkpoint_need_not_hold_documents_or_files(tmp_path):
    bare = Contents(step=0, tensors={})
    assert_equal(load(save(tmp_path, bare)), bare)


def test_the_order_of_operations_is_the_commit_protocol(tmp_path):
    with count_operations() as operations:
        final = save(tmp_path, contents(5))
    temporary = tmp_path / f"step-00000005.tmp-{os.getpid()}"
    files = [path for name, path in operations if name == "open" and path.parent == temporary]
    assert files[-1] == temporary / "manifest.json" and {path.name for path in files} == FILES
    for file in files:
        own = [name for name, path in operations if path == file]
        assert own[0] == "open" and own[-1] == "fsync" and set(own[1:-1]) == {"write"}
    assert operations[-3 - len(files) : -3] == [("fsync", file) for file in files]
    assert operations[-3:] == [("fsync", temporary), ("rename", final), ("fsync", tmp_path)]


@pytest.mark.slow  # .ci/run tries as much: `crash-points` of the reliability suite
def test_a_crash_anywhere_in_a_save_leaves_the_old_state_or_the_new(fresh):
    seen = set()
    for folder, where in every_crash(lambda: fresh(5), lambda folder: save(folder, contents(10))):
        steps = [info.step for info in list_checkpoints(folder)]
        assert steps in ([5], [5, 10]), where
        seen.add(len(steps))
        assert_sound(folder, *steps)
        assert newest_sound(folder, no_warning) == folder / f"step-{steps[-1]:08d}"
        saved(folder, 10, 15)
        assert_sound(folder, 5, 10, 15)
        assert names(folder) == ["step-00000005", "step-00000010", "step-00000015"], where  # and no litter
    assert seen == {1, 2}


def test_a_crash_anywhere_in_the_first_save_leaves_nothing_or_all_of_it(fresh):
    def nothing() -> Path:
        return fresh() / "run" / "checkpoints"

    for folder, where in every_crash(nothing, lambda folder: save(folder, contents(5)), AROUND[:1]):
        steps = [info.step for info in list_checkpoints(folder)]
        assert steps in ([], [5]), where
        assert_sound(folder, *steps)
        saved(folder, 5)
        assert_sound(folder, 5)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_anywhere_in_replacing_a_damaged_checkpoint_loses_no_sound_one(fresh, stride):
    def damaged() -> Path:
        folder = fresh(5, 10)
        (folder / "step-00000010" / "model-00000.safetensors").write_bytes(b"damaged")
        return folder

    for folder, where in every_crash(damaged, lambda folder: save(folder, contents(10)), stride=stride):
        sound = [info.step for info in list_checkpoints(folder) if not info.problems]
        assert sound in ([5], [5, 10]), where
        assert newest_sound(folder, lambda message: None) == folder / f"step-{sound[-1]:08d}"
        saved(folder, 10)
        assert_sound(folder, 5, 10)
        assert names(folder) == ["step-00000005", "step-00000010"]


def test_a_crash_anywhere_in_a_prune_leaves_whole_checkpoints_and_enough_of_them(fresh):
    def action(folder: Path) -> None:
        prune(folder, keep_last=1, keep=[10])

    seen = set()
    for folder, where in every_crash(lambda: fresh(5, 10, 15, 20), action, AROUND):
        steps = [info.step for info in list_checkpoints(folder)]
        assert steps in ([5, 10, 15, 20], [10, 15, 20], [10, 20]), where
        seen.add(len(steps))
        assert_sound(folder, *steps)
        assert newest_sound(folder, no_warning) == folder / "step-00000020"
        prune(folder, keep_last=1, keep=[10])
        assert names(folder) == ["step-00000010", "step-00000020"], where
    assert seen == {2, 3, 4}


@pytest.mark.parametrize("lost", mostly_slow(["halved", "emptied", "gone"]))
def test_a_power_cut_anywhere_in_a_save_leaves_the_old_state_or_the_new(fresh, lost):
    """Dies after every operation and then loses, too, what was not fsynced until then."""
    reference = fresh(5)
    with count_operations() as operations:
        save(reference, contents(10))
    for n in range(1, len(operations) + 1):
        folder = fresh(5)
        assert crashes_in_child(partial(save, folder, contents(10)), "any", n, "crash-after")
        lose_what_was_not_synced(folder, operations[:n], lost)
        steps = [info.step for info in list_checkpoints(folder)]
        assert steps in ([5], [5, 10])
        assert_sound(folder, *steps)
        saved(folder, 10)
        assert_sound(folder, 5, 10)


def lose_what_was_not_synced(folder: Path, operations: list[Operation], lost: str) -> None:
    """Let the disk forget contents of files, entries of folders and the rename that no later fsync made durable."""
    synced = {path.name for name, path in operations if name == "fsync"}
    for path in folder.glob("step-00000010*/*"):
        if path.name not in synced and lost == "gone":
            path.unlink()
        elif path.name not in synced:
            os.truncate(path, 0 if lost == "emptied" else path.stat().st_size // 2)
    if operations[-1].name == "rename":  # the parent's fsync would have come next
        (folder / "step-00000010").rename(folder / f"step-00000010.tmp-{DEAD_PID}")


@pytest.mark.parametrize("kind", mostly_slow(["enospc", "eio", "edquot", "erofs"], 2))
@pytest.mark.parametrize("lasting", [False, True])
def test_a_disk_that_fails_anywhere_in_a_save_costs_no_checkpoint(fresh, kind, lasting):
    n, num_failures = 1, 0
    while True:
        folder = fresh(5)
        with inject("any", n, kind, lasting=lasting) as struck:
            error = failure_of(partial(save, folder, contents(10)))
        if not struck():
            break
        assert error is not None and str(folder) in one_line(error)
        steps = [info.step for info in list_checkpoints(folder)]
        assert steps in ([5], [5, 10])
        assert_sound(folder, *steps)
        if not lasting:  # else nothing could be removed either
            assert names(folder) == [f"step-{step:08d}" for step in steps]
        saved(folder, 10)
        assert_sound(folder, 5, 10)
        assert len(names(folder)) == 2
        n, num_failures = n + 1, num_failures + 1
    assert num_failures > 20


@pytest.mark.parametrize("kind", ["erofs", "eio"])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_disk_that_fails_anywhere_in_a_prune_costs_no_checkpoint(fresh, kind, lasting):
    n = 1
    while True:
        folder = fresh(5, 10, 15)
        with inject("any", n, kind, lasting=lasting) as struck:
            error = failure_of(partial(prune, folder, keep_last=1))
        if not struck():
            break
        assert error is not None and str(folder) in one_line(error)
        steps = [info.step for info in list_checkpoints(folder)]
        assert_sound(folder, *steps)
        assert steps[-1] == 15
        prune(folder, keep_last=1)
        assert names(folder) == ["step-00000015"]
        n += 1
    assert n > 10


def failure_of(action: Callable[[], object]) -> StorageError | None:
    try:
        action()
    except StorageError as error:
        return error
    return None


def test_every_write_may_be_short(fresh):
    folder = fresh(5)
    with inject("write", 1, "short-write", lasting=True):
        save(folder, contents(10))
    assert_sound(folder, 5, 10)


@pytest.mark.parametrize("limit", range(0, 800, 40))
def test_a_real_limit_at_byte_k_costs_no_checkpoint(fresh, limit):
    """The kernel itself refuses to write beyond byte ``limit`` of a file, after taking a part of the write."""
    folder = fresh(5)

    def save_under_limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        error = failure_of(lambda: save(folder, contents(10)))
        assert error is not None and isinstance(error.__cause__, OSError)
        assert error.__cause__.errno == errno.EFBIG
        assert " free)" in one_line(error)

    assert not crashes_in_child(save_under_limit, "any", 10_000, "crash-before")
    assert_sound(folder, 5)
    assert names(folder) == ["step-00000005"]


def test_a_save_that_cannot_fit_is_refused_before_it_begins(fresh, monkeypatch):
    folder = fresh(5)
    monkeypatch.setattr(system, "free_bytes", lambda path: 3000)
    with count_operations() as operations, pytest.raises(StorageError) as caught:
        save(folder, contents(10))
    assert f"cannot save a checkpoint in {folder}: 1.0 MiB needed, 2.9 KiB free" in one_line(caught.value)
    assert operations == []


def test_the_space_asked_for_grows_with_the_tensors(fresh, monkeypatch):
    folder = fresh(5)
    large = Contents(step=10, tensors={"model": {"weight": torch.empty(3 << 20)}})
    monkeypatch.setattr(system, "free_bytes", lambda path: 12 << 20)
    with pytest.raises(StorageError, match=r"13.0 MiB needed, 12.0 MiB free"):
        save(folder, large)


def test_a_sound_checkpoint_is_not_saved_again(fresh):
    folder = fresh(5)
    with count_operations() as operations:
        assert save(folder, contents(5)) == folder / "step-00000005"
    assert operations == []


@pytest.mark.parametrize("damage", ["file", "folder", "empty folder", "link"])
def test_anything_in_the_place_of_a_checkpoint_is_replaced(tmp_path, damage):
    path = tmp_path / "checkpoints" / "step-00000005"
    path.parent.mkdir()
    if damage == "file":
        path.write_bytes(b"not a folder")
    elif damage == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    if damage == "folder":
        (path / "manifest.json").write_bytes(b"{}")
    saved(path.parent, 5)
    assert_sound(path.parent, 5)
    found, *kept = names(path.parent)
    assert found == "step-00000005" and len(kept) == (damage in ("file", "link")), "no save has made these"


def test_leftovers_of_dead_processes_alone_are_removed(fresh):
    folder = fresh(5)
    dead = [f"step-00000001.tmp-{DEAD_PID}", f"step-00000002.tmp-{DEAD_PID}-old", f"step-00000003.tmp-{os.getpid()}"]
    others = ["step-00000001.tmp-1", "step-1.tmp-x", f"mine.tmp-{DEAD_PID}", f"step-00000001.tmp-{DEAD_PID}-new", "x"]
    for action in (lambda: saved(folder, 10), lambda: prune(folder, keep_last=5)):
        for name in (*dead, *others):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "file").touch()
        action()
        assert names(folder) == sorted(["step-00000005", "step-00000010", *others])


def test_a_leftover_that_cannot_be_removed_never_gets_into_a_checkpoint(fresh):
    folder = fresh(5)
    leftover = folder / f"step-00000010.tmp-{os.getpid()}"
    leftover.mkdir()
    (leftover / "stale").touch()
    with inject("unlink", 1, "eacces", lasting=True), pytest.raises(StorageError, match="File exists"):
        save(folder, contents(10))
    assert_sound(folder, 5)
    saved(folder, 10)
    assert_sound(folder, 5, 10)


@pytest.mark.parametrize(
    "wrong",
    [
        Contents(step=1, tensors={"model": {"weight": torch.zeros(2, dtype=torch.complex64)}}),
        Contents(step=1, tensors={"model": {"__metadata__": torch.zeros(2)}}),
        Contents(step=1, tensors={"../model": {}}),
        Contents(step=1, tensors={}, documents={"manifest": {}}),
        Contents(step=1, tensors={}, documents={"tokenizer": {}}, files={"tokenizer.json": b""}),
        Contents(step=1, tensors={}, files={"a/b": b""}),
        Contents(step=1, tensors={}, files={".hidden": b""}),
    ],
)
def test_contents_that_cannot_be_stored_are_refused_before_anything_is_written(tmp_path, wrong):
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path / "new", wrong)
    assert one_line(caught.value)
    assert names(tmp_path) == []


def test_prune_keeps_the_newest_and_the_chosen(fresh):
    folder = fresh(5, 10, 15, 20)
    assert prune(folder, keep_last=2, keep={5, 999}) == [folder / "step-00000010"]
    assert_sound(folder, 5, 15, 20)
    assert prune(folder, keep_last=2, keep={5}) == []
    assert prune(folder, keep_last=9) == []
    assert prune(folder, keep_last=1) == [folder / "step-00000005", folder / "step-00000015"]
    assert_sound(folder, 20)


def test_prune_does_not_count_damaged_checkpoints_and_leaves_them(fresh):
    folder = fresh(5, 10, 15, 20)
    for step in (15, 20):
        (folder / f"step-{step:08d}" / "state.json").unlink()
    assert prune(folder, keep_last=1) == [folder / "step-00000005"]
    assert names(folder) == ["step-00000010", "step-00000015", "step-00000020"]


def test_prune_leaves_what_it_did_not_create(fresh, tmp_path):
    folder = fresh(5, 10)
    (folder / "step-00000005").rename(tmp_path / "elsewhere")
    (folder / "step-00000005").symlink_to(tmp_path / "elsewhere")
    assert_sound(folder, 5, 10)
    for name in ("step-00000002", "step-3", "mine"):
        (folder / name).mkdir()
    prune(folder, keep_last=1)
    assert names(folder) == sorted(["mine", "step-00000002", "step-00000005", "step-00000010", "step-3"])
    assert set(names(tmp_path / "elsewhere")) == FILES


def test_prune_of_nothing_is_fine(tmp_path):
    assert prune(tmp_path / "missing", keep_last=1) == []


def test_prune_refuses_to_leave_nothing(fresh):
    with pytest.raises(UserError, match="at least 1"):
        prune(fresh(5), keep_last=0)
