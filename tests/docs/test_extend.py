"""docs/extend.md: its scripts are written to files as they stand there, and so are its commands run."""

import json
import math
from pathlib import Path

import pytest
from pages import ROOT, Shell, blocks_of, commands_of, write_texts

from hornbook import extend
from hornbook.__main__ import main
from hornbook.checkpoint import list_checkpoints

PAGE = ROOT / "docs" / "extend.md"
LONGEST_SCRIPT = 50


def scripts() -> dict[str, str]:
    return {block.file: block.body for block in blocks_of(PAGE) if block.language == "python"}


def commands(script: str) -> list[str]:
    return [command for command in commands_of(PAGE) if command.startswith(f"python {script} ")]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    for block in blocks_of(PAGE):
        if block.file:
            (tmp_path / block.file).write_text(block.body, encoding="utf-8")
    return Shell(tmp_path)


def rows_of(run: Path, kind: str) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == kind]


def test_every_command_is_run_by_a_test_below() -> None:
    assert set(scripts()) == {"conv_model.py", "regularized.py", "accuracy.py"}
    assert len(commands_of(PAGE)) == sum(len(commands(script)) for script in scripts())


def test_the_scripts_are_short() -> None:
    lengths = {name: len(body.splitlines()) for name, body in scripts().items()}
    assert {name: length for name, length in lengths.items() if length >= LONGEST_SCRIPT} == {}


def test_processes_that_import_a_script_do_not_start_it_again() -> None:
    for script in (*scripts().values(), extend.__doc__ or ""):
        assert 'if __name__ == "__main__":' in script


def assert_is_unknown_without_its_script(run: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--prompt", "a"]) == 2
    assert main(["train", "demo", "--data.synthetic", "--model.vocab-size", "512", "--output", str(run)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    told = f"{run} holds a model {what}, which hornbook does not have"
    assert [told in line for line in lines] == [True, True]


def test_a_model_of_ones_own(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = commands("conv_model.py")
    shell.run(command)
    run = shell.folder / "runs" / "conv"
    steps = rows_of(run, "train")
    assert steps[-1]["step"] == 2
    assert steps[0]["loss"] == pytest.approx(math.log(512), abs=0.2), "random weights know nothing of 512 tokens"
    (saved,) = list_checkpoints(run / "checkpoints")
    recipe = json.loads((saved.path / "recipe.json").read_text(encoding="utf-8"))
    assert saved.problems == []
    assert recipe["model"]["kernel_size"] == 8
    assert_is_unknown_without_its_script(run, 'of the family "conv"', capsys)


def test_an_objective_of_ones_own(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = commands("regularized.py")
    shell.run(command)
    last = rows_of(shell.folder / "runs" / "regularized", "train")[-1]
    assert last["step"] == 2
    assert last["activation"] > 0
    assert last["loss"] == pytest.approx(last["causal_lm"] + 0.1 * last["activation"], rel=1e-5)
    run = shell.folder / "runs" / "regularized"
    assert_is_unknown_without_its_script(run, 'made with the objective "regularized"', capsys)


def test_a_task_of_ones_own(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    train_a_little(shell.folder, monkeypatch)
    (command,) = commands("accuracy.py")
    result = json.loads(shell.run(f"{command} --json"))
    assert [task["name"] for task in result["tasks"]] == ["accuracy", "bits_per_byte"]
    assert 0.0 < result["tasks"][0]["rows"][0]["value"] < 1.0
    kept = json.loads((shell.folder / "demo" / "run" / "evaluation.json").read_text(encoding="utf-8"))
    assert kept == {"tasks": result["tasks"]}


def train_a_little(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make demo/run in the folder: a run of a small GPT on a corpus that has a validation split."""
    monkeypatch.chdir(folder)
    write_texts(folder / "texts")
    sizes = "--model.num-layers 1 --model.hidden-size 32 --model.max-positions 64 --data.sequence-length 64"
    length = "--training.steps 4 --schedule.warmup-steps 1 --optimizer.learning-rate 1e-2 --threads 1"
    for command in (
        "tokenizer train texts --vocab-size 300 --output tokenizer",
        "corpus build texts --tokenizer tokenizer --validation 0.2 --output corpus",
        f"train demo --data.train corpus --output demo/run {sizes} {length}",
    ):
        assert main(command.split()) == 0
