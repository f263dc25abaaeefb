"""Checkpoints that are written behind the training: the same bytes, one at a time, never lost, errors in one line."""

import threading
import time

import pytest
from crashes import crashes_in_child
from tiny_checkpoints import contents
from tiny_runs import digest, metrics_without_time, run_tiny, stop_after

from hornbook import checkpoint
from hornbook.errors import StoppedBySignal, StorageError
from hornbook.parallel.world import World
from hornbook.run.saving import Saver, Snapshot
from hornbook.run.training_run import TrainingRun
from hornbook.storage.faults import inject

BEHIND = "--checkpoint.background"


@pytest.fixture
def slow_disk(monkeypatch):
    """Every save takes a while, and the first one until the training is at a later step.

    Returns [(step, step of the training when the save is done, how many at once)].
    """
    save, record, saves, now, active = checkpoint.save, TrainingRun.record, [], [0], []

    def save_slowly(folder, contents, *others):
        active.append(contents.step)
        at_once = len(active)
        time.sleep(0.3)
        deadline = time.monotonic() + 60
        while not saves and now[0] <= contents.step and time.monotonic() < deadline:
            time.sleep(0.01)
        path = save(folder, contents, *others)
        active.remove(contents.step)
        saves.append((contents.step, now[0], at_once))
        return path

    def count(run, result):
        record(run, result)
        now[0] = run.state.progress.step
        time.sleep(0.01)

    monkeypatch.setattr(checkpoint, "save", save_slowly)
    monkeypatch.setattr(TrainingRun, "record", count)
    return saves


def test_a_checkpoint_has_the_same_bytes_either_way(tmp_path):
    run_tiny(tmp_path / "front")
    run_tiny(tmp_path / "behind", BEHIND)
    for step in (6, 8):
        assert digest(tmp_path / "front", step) == digest(tmp_path / "behind", step)
    assert metrics_without_time(tmp_path / "front") == metrics_without_time(tmp_path / "behind")


class LostRanks(World):
    """Ranks of which one was killed."""

    def barrier(self):
        raise RuntimeError("Connection closed by peer")


def test_a_rank_lost_during_a_save_is_reported_once_by_a_waiting_rank(tmp_path, monkeypatch, capfd):
    uncaught = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    world = World()
    world.aside = LostRanks()
    saver = Saver(world=world, folder=tmp_path, require_folder=lambda: None)
    snapshot = Snapshot(contents=contents(4), held={}, best_before=("validation", None, None), keep_last=1, keep=())
    for behind in (True, False):
        saver.start(snapshot, behind=behind)
        with pytest.raises(RuntimeError, match="closed by peer"):
            saver.finish()
    for thread in threading.enumerate():
        if thread.name == "hornbook-checkpoint":
            thread.join()
    assert not uncaught and "Traceback" not in capfd.readouterr().err


def test_steps_continue_while_a_checkpoint_is_written(tmp_path, slow_disk, capfd):
    run_tiny(tmp_path, BEHIND, "--training.steps=9")
    assert [step for step, *_ in slow_disk] == [3, 6, 9]
    assert [at_once for *_, at_once in slow_disk] == [1, 1, 1]
    assert slow_disk[0][1] > 3 and slow_disk[2][1] == 9
    printed = capfd.readouterr()
    assert [f"step-{step:08d}" in printed.out + printed.err for step in (3, 6, 9)] == [True] * 3
    assert threading.active_count() == 1 or not [
        thread for thread in threading.enumerate() if thread.name == "hornbook-checkpoint"
    ]


def test_a_signal_waits_for_the_checkpoint_that_is_written(tmp_path, slow_disk, monkeypatch):
    stop_after(monkeypatch, 4)
    with pytest.raises(StoppedBySignal, match="step 4 of 8 is saved"):
        run_tiny(tmp_path, BEHIND)
    folder = tmp_path / "run" / "checkpoints"
    assert checkpoint.steps_in(folder) == [3, 4]
    assert not any(checkpoint.verify(checkpoint.folder_of(folder, step)) for step in (3, 4))


def test_an_error_of_the_training_waits_for_the_checkpoint_that_is_written(tmp_path, slow_disk, monkeypatch):
    record = TrainingRun.record

    def fail(run, result):
        record(run, result)
        if run.state.progress.step == 4:
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(TrainingRun, "record", fail)
    with pytest.raises(ZeroDivisionError):
        run_tiny(tmp_path, BEHIND)
    assert checkpoint.steps_in(tmp_path / "run" / "checkpoints") == [3]


def test_a_full_disk_is_a_warning_at_a_later_step_and_an_error_at_the_end(tmp_path, monkeypatch, capfd):
    save = checkpoint.save

    def fail(folder, contents, *others):
        with inject("write", 1, "enospc", lasting=True):
            return save(folder, contents, *others)

    monkeypatch.setattr(checkpoint, "save", fail)
    with pytest.raises(StorageError, match="No space left on device"):
        run_tiny(tmp_path, BEHIND, "--training.steps=5")
    assert capfd.readouterr().err.count("checkpoint not saved, training continues: ") == 1


def test_the_best_checkpoint_is_not_one_that_could_not_be_saved(tmp_path, monkeypatch):
    save = checkpoint.save

    def fail(folder, contents, *others):
        if contents.step == 6:
            raise StorageError("the disk is full")
        return save(folder, contents, *others)

    monkeypatch.setattr(checkpoint, "save", fail)
    results = [run_tiny(tmp_path / name, *more) for name, more in {"front": (), "behind": (BEHIND,)}.items()]
    for result, name in zip(results, ("front", "behind"), strict=True):
        assert checkpoint.steps_in(tmp_path / name / "run" / "checkpoints") == [3, 8]
        assert result["best_step"] != 6


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), (BEHIND,)], ids=["front", "behind"])
def test_a_crash_anywhere_leaves_checkpoints_that_a_resume_takes(tmp_path, options):
    run_tiny(tmp_path / "whole")
    n, points = 1, 0
    while crashes_in_child(lambda folder=tmp_path / str(n): run_tiny(folder, *options), "any", n, "crash-before"):
        folder = tmp_path / str(n)
        steps = checkpoint.steps_in(folder / "run" / "checkpoints")
        assert not any(checkpoint.verify(checkpoint.folder_of(folder / "run" / "checkpoints", step)) for step in steps)
        run_tiny(folder, *options)
        assert digest(folder, 8) == digest(tmp_path / "whole", 8)
        n, points = n + 9, points + 1
    assert points > 5
