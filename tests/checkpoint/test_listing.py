import logging
import shutil

import pytest
from tiny_checkpoints import one_line, saved

from hornbook.checkpoint import Info, list_checkpoints, newest_sound, resolve
from hornbook.checkpoint.load import committed, describe, require_source
from hornbook.errors import CheckpointError, StorageError


def damage(path) -> None:
    (path / "state.json").unlink()


def test_checkpoints_are_listed_oldest_first_with_what_is_wrong(tmp_path):
    paths = saved(tmp_path, 10, 5, 100_000_000)
    damage(paths[0])
    found = list_checkpoints(tmp_path)
    assert [(info.step, info.path, info.problems) for info in found] == [
        (5, paths[1], []),
        (10, paths[0], ["state.json is missing"]),
        (100_000_000, paths[2], []),
    ]
    assert found[0].size == sum(file.stat().st_size for file in paths[1].iterdir())
    assert found[1].size < found[0].size


def test_what_is_not_named_as_a_checkpoint_is_none(tmp_path):
    (path,) = saved(tmp_path, 5)
    for name in ("step-6", "step-000000007", "step-00000008.tmp-12", "step-00000009.tmp-12-old", "latest", "step-x"):
        shutil.copytree(path, tmp_path / name)
    assert committed(tmp_path) == [(5, path)]


def test_a_file_in_the_place_of_a_checkpoint_is_a_problem(tmp_path):
    (tmp_path / "step-00000005").write_bytes(b"")
    (info,) = list_checkpoints(tmp_path)
    assert info == Info(
        step=5,
        path=tmp_path / "step-00000005",
        size=0,
        problems=[f"{info.path} is not a folder; expected a checkpoint"],
    )


def test_a_missing_folder_holds_nothing(tmp_path):
    assert list_checkpoints(tmp_path / "missing") == []
    assert newest_sound(tmp_path / "missing", pytest.fail) is None


def test_the_newest_sound_one_is_found_behind_damaged_ones(tmp_path):
    paths = saved(tmp_path, 5, 10, 15, 20)
    assert newest_sound(tmp_path, pytest.fail) == paths[3]
    damage(paths[3])
    damage(paths[2])
    warnings: list[str] = []
    assert newest_sound(tmp_path, warnings.append) == paths[1]
    assert [str(path) in warning for path, warning in zip((paths[3], paths[2]), warnings, strict=True)] == [True, True]
    assert all("state.json is missing" in warning for warning in warnings)


def test_the_disk_is_asked_every_time(tmp_path):
    paths = saved(tmp_path, 5, 10)
    assert newest_sound(tmp_path, pytest.fail) == paths[1]
    shutil.rmtree(paths[1])
    assert newest_sound(tmp_path, pytest.fail) == paths[0]


def test_nothing_sound_is_nothing(tmp_path):
    damage(saved(tmp_path, 5)[0])
    warnings: list[str] = []
    assert newest_sound(tmp_path, warnings.append) is None
    assert len(warnings) == 1


def test_a_run_its_checkpoints_and_a_checkpoint_are_resolved(tmp_path):
    older, newer = saved(tmp_path / "run" / "checkpoints", 5, 10)
    assert resolve(tmp_path / "run") == newer
    assert resolve(tmp_path / "run" / "checkpoints") == newer
    assert resolve(older) == older
    copied = shutil.copytree(older, tmp_path / "a copy")
    assert resolve(copied) == copied


def test_a_damaged_one_is_passed_over_with_a_warning_but_not_when_it_was_named(tmp_path, caplog):
    older, newer = saved(tmp_path / "checkpoints", 5, 10)
    damage(newer)
    with caplog.at_level(logging.WARNING):
        assert resolve(tmp_path) == older
    assert "damaged and skipped" in caplog.text
    assert resolve(newer) == newer


@pytest.mark.parametrize("what", ["missing", "file", "empty", "damaged"])
def test_where_no_checkpoint_is_one_line_says_so(tmp_path, what):
    path = tmp_path / what
    if what == "file":
        path.write_bytes(b"")
    if what == "empty":
        path.mkdir()
    if what == "damaged":
        damage(saved(path / "checkpoints", 5)[0])
    with pytest.raises(CheckpointError) as caught:
        resolve(path, lambda message: None)
    assert str(path) in one_line(caught.value)
    assert ("1 damaged" in str(caught.value)) == (what == "damaged")


def test_one_checkpoint_is_described_whatever_its_name(tmp_path):
    (path,) = saved(tmp_path, 5)
    moved = path.rename(tmp_path / "best")
    assert describe(moved).step == 5
    damage(moved)
    assert (describe(moved).step, describe(moved).problems) == (None, ["state.json is missing"])


def test_a_folder_that_cannot_be_read_is_reported(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        list_checkpoints(tmp_path)


def test_a_source_that_is_not_there_is_refused_without_torch_and_without_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / "model.ckpt.index").touch()
    for source in ("runs/mine", "tf/model.ckpt", "owner/name", "hf://owner/name"):
        require_source(source)
    for source in ("runs/qqq", "./owner/name", "a/b/c", "gpt2"):
        with pytest.raises(CheckpointError, match=r"no run or checkpoint at .*: no such folder; .*expected"):
            require_source(source)
    with pytest.raises(CheckpointError, match='no such folder; did you mean "runs/mine"'):
        require_source("runs/mien")


def test_a_file_is_no_source(tmp_path):
    (tmp_path / "texts.txt").write_text("some text")
    with pytest.raises(CheckpointError, match=r"texts\.txt: it is a file; expected a run's folder"):
        require_source(tmp_path / "texts.txt")


def test_a_run_whose_only_checkpoint_is_damaged_says_how_to_continue(tmp_path):
    damaged = tmp_path / "run" / "checkpoints" / "step-00000002"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"no intact checkpoint, but 1 damaged one: restore .* or train again"):
        resolve(tmp_path / "run")


def test_a_name_without_its_owner_is_answered_with_the_hubs_name():
    for name, full in (("gpt2", "openai-community/gpt2"), ("bert-base-uncased", "google-bert/bert-base-uncased")):
        with pytest.raises(CheckpointError, match=f'on the Hugging Face hub, it is "{full}"'):
            require_source(name)
