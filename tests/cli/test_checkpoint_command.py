import json
from pathlib import Path

import pytest
import torch
from tiny_huggingface import tiny_folder

from hornbook.checkpoint import Contents, save
from hornbook.cli.checkpoint_command import list_command, verify_command
from hornbook.cli.main import main
from hornbook.errors import CheckpointError


@pytest.fixture
def run(tmp_path) -> Path:
    for step in (5, 10):
        tensors = {"model": {"weight": torch.full((300,), float(step))}}
        save(tmp_path / "checkpoints", Contents(step=step, tensors=tensors, documents={"state": {"step": step}}))
    return tmp_path


@pytest.mark.parametrize("command", ["list", "verify"])
def test_the_command_line_leads_here(run, capsys, command):
    assert main(["checkpoint", command, str(run), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [item["step"] for item in json.loads(out)["checkpoints"]] == [5, 10]
    assert (out.count("\n"), err.count("sound")) == (1, 2)
    assert main(["checkpoint", command, str(run)]) == 0
    assert capsys.readouterr().out.count("sound") == 2
    damage(run)
    assert main(["checkpoint", command, str(run)]) == (2 if command == "verify" else 0)
    assert "state.json is missing" in "".join(capsys.readouterr())


def damage(run: Path) -> None:
    (run / "checkpoints" / "step-00000010" / "state.json").unlink()


def test_list_prints_a_table(run, capsys):
    damage(run)
    list_command(run)
    assert capsys.readouterr().out.splitlines() == [
        "      step        size  state",
        "         5     2.1 KiB  sound",
        "        10     2.1 KiB  damaged: state.json is missing",
    ]


@pytest.mark.parametrize("name", [".", "checkpoints"])
def test_list_returns_what_it_found(run, name):
    damage(run)
    found = list_command(run / name)
    assert json.loads(json.dumps(found)) == found
    assert [(item["step"], item["sound"], item["problems"]) for item in found["checkpoints"]] == [
        (5, True, []),
        (10, False, ["state.json is missing"]),
    ]
    assert Path(found["checkpoints"][0]["path"]) == run / "checkpoints" / "step-00000005"


@pytest.mark.parametrize("command", ["list", "verify"])
def test_a_folder_of_hugging_faces_has_nothing_to_check(tmp_path, capsys, command):
    folder = tiny_folder(tmp_path / "gpt2")
    assert main(["checkpoint", command, str(folder)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{folder} is a Hugging Face folder or a TensorFlow checkpoint, which has no checksums" in err
    assert "`hornbook checkpoint import`" in err


def test_list_of_a_single_checkpoint(run):
    (found,) = list_command(run / "checkpoints" / "step-00000010")["checkpoints"]
    assert found["step"] == 10 and found["sound"]


@pytest.mark.parametrize("name", [".", "checkpoints"])
def test_a_run_that_has_not_saved_has_no_checkpoints_and_none_to_verify(tmp_path, capsys, name):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    assert list_command(tmp_path / name)["checkpoints"] == []
    assert capsys.readouterr().out == f"no checkpoints in {tmp_path / name}\n"
    with pytest.raises(CheckpointError, match="contains no checkpoint"):
        verify_command(tmp_path / name)


@pytest.mark.parametrize("command", ["list", "verify"])
def test_a_folder_without_a_run_or_checkpoint_is_refused(tmp_path, capsys, command):
    assert main(["checkpoint", command, str(tmp_path)]) == 2
    assert f"{tmp_path} contains no checkpoint; expected a run folder or a checkpoint" in capsys.readouterr().err


def test_list_of_a_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        list_command(tmp_path / "missing")


def test_verify_says_what_is_sound(run, capsys):
    path = run / "checkpoints" / "step-00000005"
    found = verify_command(path)
    assert capsys.readouterr().out == f"{path}: sound, 2.1 KiB\n"
    assert [item["sound"] for item in found["checkpoints"]] == [True]
    assert len(verify_command(run)["checkpoints"]) == 2


def test_verify_of_a_damaged_one_is_the_users_to_know(run, capsys):
    damage(run)
    with pytest.raises(
        CheckpointError, match=r"1 of 2 checkpoints damaged: .*step-00000010: state.json is missing"
    ) as caught:
        verify_command(run)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out.count("sound") == 1


def test_verify_of_a_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match="contains no checkpoint"):
        verify_command(tmp_path / "missing")
