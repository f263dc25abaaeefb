import json
from pathlib import Path

import pytest
from recording_tracker import OPENED, Hanging, Slow
from tiny_text import one_line

from hornbook.errors import DataError, StoppedBySignal
from hornbook.track.trackers import delivery
from hornbook.track.trackers.delivery import Trackers, numbers_of
from hornbook.track.trackers.tracker import TrackedRun


def run_in(folder: Path, step: int = 0) -> TrackedRun:
    return TrackedRun(name="tiny", project="tests", folder=folder, config={"a.b": 1}, step=step, run_id=None)


def train_row(step: int) -> dict[str, object]:
    return {"kind": "train", "step": step, "loss": 1.0 / step}


def test_the_numbers_of_each_kind_of_row() -> None:
    row = {"kind": "train", "step": 3, "loss": float("nan"), "tokens": 12, "nothing": None, "non_finite": {}}
    assert numbers_of(row) == {"train/tokens": 12.0}
    assert numbers_of({"kind": "validation", "step": 3, "loss": 2.5, "loss/wiki": 2.0, "complete": True}) == {
        "validation/loss": 2.5,
        "validation/loss/wiki": 2.0,
    }
    task = {"kind": "task", "step": 3, "task": "lambada", "metric": "accuracy", "value": 0.5, "convention": "words"}
    assert numbers_of(task) == {"task/lambada/accuracy": 0.5}
    topology = {"kind": "topology", "step": 3, "layer": "blocks.0.attention.out", "moved": 7}
    assert numbers_of(topology) == {"topology/blocks.0.attention.out/moved": 7.0}


def test_entries_arrive_in_order_from_one_other_thread(tmp_path: Path) -> None:
    messages: list[str] = []
    with Trackers(["recording"], run_in(tmp_path), messages.append) as trackers:
        for step in range(1, 50):
            trackers.row(train_row(step))
        trackers.sample({"step": 49, "prompt": "Once", "text": " upon"})
    tracker = OPENED[-1]
    assert [step for _, step, _ in tracker.entries] == [*range(1, 50), 49]
    assert tracker.entries[-1] == ("sample", 49, "Once upon")
    assert tracker.threads == {"tracker recording"}
    assert (tracker.ended, messages) == ("finished", [])


def test_the_id_of_a_run_is_kept_in_its_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with Trackers(["recording"], run_in(tmp_path), pytest.fail):
            pass
    first, second = OPENED[-2:]
    assert first.run.run_id is None
    assert second.run.run_id == first.run_id
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"recording": first.run_id}


def test_a_damaged_file_of_ids_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text("[1]")
    with pytest.raises(DataError) as caught:
        Trackers(["recording"], run_in(tmp_path), pytest.fail)
    assert one_line(caught.value, "trackers.json", "remove it to start new runs")


def test_a_tracker_that_fails_is_dropped_with_one_warning(tmp_path: Path) -> None:
    messages: list[str] = []
    with Trackers(["failing", "recording", "closed-door"], run_in(tmp_path), messages.append) as trackers:
        for step in range(1, 9):
            trackers.row(train_row(step))
    assert sorted(messages) == [
        "tracker closed-door cannot be opened, training continues without it: PermissionError: no key",
        "tracker failing failed, training continues without it: ConnectionError: the server is gone",
    ]
    assert len(OPENED[-1].entries) == 8  # the other one has them all
    assert set(json.loads((tmp_path / "trackers.json").read_text())) == {"failing", "recording"}


def test_a_tracker_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SECONDS_AT_THE_END", 0.2)
    messages: list[str] = []
    try:
        with Trackers(["hanging"], run_in(tmp_path), messages.append) as trackers:
            for step in range(1, 6):
                trackers.row(train_row(step))
    finally:
        Hanging.let_go.set()
    assert messages == ["tracker hanging does not respond: 5 records not delivered"]


def test_a_tracker_that_is_slow_to_open_gets_what_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SECONDS_TO_OPEN", 0.1)
    messages: list[str] = []
    with Trackers(["slow"], run_in(tmp_path), messages.append) as trackers:
        trackers.row(train_row(1))
        assert not (tmp_path / "trackers.json").exists()
        Slow.let_go.set()
    assert messages == ["tracker slow is slow to open; training starts, and its records are queued"]
    assert OPENED[-1].of_kind("numbers") == {1: {"train/loss": 1.0}}
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"slow": OPENED[-1].run_id}


@pytest.mark.parametrize(("error", "ended"), [(StoppedBySignal("SIGTERM"), "stopped"), (ValueError(), "failed")])
def test_trackers_hear_how_the_session_ended(tmp_path: Path, error: Exception, ended: str) -> None:
    with pytest.raises(type(error)), Trackers(["recording"], run_in(tmp_path), pytest.fail):
        raise error
    assert OPENED[-1].ended == ended


def test_a_run_without_trackers_writes_nothing(tmp_path: Path) -> None:
    with Trackers([], run_in(tmp_path), pytest.fail) as trackers:
        trackers.row(train_row(1))
    assert list(tmp_path.iterdir()) == []
