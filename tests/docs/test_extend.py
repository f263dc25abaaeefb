"""docs/extend.md: its scripts are written to files as they stand there, and so are its commands run."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
from pages import ROOT, Shell, blocks_of, commands_of, write_texts

from hornbook import extend
from hornbook.__main__ import main
from hornbook.checkpoint import list_checkpoints

PAGE = ROOT / "docs" / "extend.md"
EXAMPLES = ROOT / "examples"
LONGEST_SCRIPT = 50
"""Of those that are not files in ``examples/``, too."""
SMALL = "--model.num-layers 2 --model.hidden-size 32 --model.max-positions 64 --precision.compute fp32 --threads 1"


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
    assert set(scripts()) == {
        "conv_model.py",
        "regularized.py",
        "accuracy.py",
        "state_space.py",
        "experts.py",
        "lion.py",
        "json_tracker.py",
    }
    with_script = [command for script in scripts() for command in commands(script)]
    assert [command for command in commands_of(PAGE) if command not in with_script] == [plain_command()]


def plain_command() -> str:
    """The one command of the page that uses a run without the script that trained it."""
    return next(command for command in commands_of(PAGE) if command.startswith("hornbook "))


def test_the_scripts_are_short() -> None:
    own = {name: body for name, body in scripts().items() if not (EXAMPLES / name).exists()}
    lengths = {name: len(body.splitlines()) for name, body in own.items()}
    assert {name: length for name, length in lengths.items() if length >= LONGEST_SCRIPT} == {}


def test_the_examples_are_shown_as_they_are() -> None:
    shown = {block.file: block.body for block in blocks_of(PAGE) if block.file}
    for name in ("state_space.py", "state_space.toml", "experts.py", "experts.toml", "lion.py", "lion.toml"):
        assert shown[name] == (EXAMPLES / name).read_text(encoding="utf-8")


def test_the_public_names_are_those_of_the_page() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Public names")[2].partition("\n## ")[0]
    rows = [line.partition("|")[2].partition("|")[2] for line in section.splitlines() if line.startswith("| ")]
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(listed) == sorted(extend.__all__)
    assert [name for name in listed if not hasattr(extend, name)] == []


def test_processes_that_import_a_script_do_not_start_it_again() -> None:
    for script in (*scripts().values(), extend.__doc__ or ""):
        assert 'if __name__ == "__main__":' in script


@pytest.mark.slow
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
    assert main(["generate", str(run), "--prompt", "a"]) == 2
    assert main(["train", "demo", "--data.synthetic", "--model.vocab-size", "512", "--output", str(run)]) == 2
    lines = capsys.readouterr().err.splitlines()
    message = f'{run} has a model of the family "conv", which hornbook does not have: run this command with the script'
    script = f"python {shell.folder / 'conv_model.py'} instead of hornbook"
    assert [message in line and script in line for line in lines if "warning" not in line] == [True, True]


@pytest.mark.slow
def test_an_objective_of_ones_own(shell: Shell) -> None:
    (command,) = commands("regularized.py")
    shell.run(command)
    last = rows_of(shell.folder / "runs" / "regularized", "train")[-1]
    assert last["step"] == 2
    assert last["activation"] > 0
    assert last["loss"] == pytest.approx(last["causal_lm"] + 0.1 * last["activation"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state_space", "experts"])
def test_families(shell: Shell, name: str) -> None:
    make_corpus(shell.folder, "corpora/mine")
    train, generate, plan = commands(f"{name}.py")
    shell.run(f"{train} {SMALL} --schedule.warmup-steps 2")
    losses = [row["loss"] for row in rows_of(shell.folder / "runs" / name, "train")]
    assert losses[-1] < losses[0] - 0.5
    text = shell.run(f"{generate} --temperature 0 --json")
    assert json.loads(text.splitlines()[-1])["texts"] == 1
    assert "It fits" in shell.run(plan)


@pytest.mark.slow
def test_lion_and_a_run_without_its_optimizer_and_objective(shell: Shell, capsys, caplog, monkeypatch) -> None:
    """Both parts are registered by the script that trains; then the plain hornbook uses the run."""
    make_corpus(shell.folder, "corpora/mine")
    (train,) = commands("lion.py")
    rate = "--optimizer.learning-rate 3e-3"  # for few steps
    main_lines = 'if __name__ == "__main__":\n    raise SystemExit(extend.main())\n'
    (shell.folder / "both.py").write_text(f"import lion, regularized\nfrom hornbook import extend\n{main_lines}")
    shell.run(
        f"{train.replace('lion.py', 'both.py')} {SMALL} --objective.name regularized --schedule.warmup-steps 2 {rate}"
    )
    losses = [row["loss"] for row in rows_of(shell.folder / "runs" / "lion", "train")]
    assert losses[-1] < losses[0] - 0.5
    monkeypatch.chdir(shell.folder)
    for command in (
        plain_command(),
        "hornbook evaluate runs/lion",
        "hornbook checkpoint verify runs/lion",
        "hornbook checkpoint export runs/lion --output exported",
        "hornbook runs list",
        "hornbook runs report runs/lion",
    ):
        caplog.clear()
        assert main(shlex.split(command)[1:]) == 0, command
        warned = 'trained with the objective "regularized", which is not registered here' in caplog.text
        assert warned == ("generate" in command or "evaluate" in command), command
    assert main(["train", "demo", "--data.train", "corpora/mine", "--output", "runs/lion"]) == 2
    message = 'runs/lion has a model made with the objective "regularized", which hornbook does not have'
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_tracker_of_ones_own(shell: Shell) -> None:
    make_corpus(shell.folder, "corpora/mine")
    (command,) = commands("json_tracker.py")
    shell.run(f"{command} {SMALL} --data.sequence-length 64 --schedule.warmup-steps 2 --tracking.sample-every-steps 4")
    tracked = (shell.folder / "runs" / "tracked" / "tracked.jsonl").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in tracked.splitlines()]
    assert {entry["run_id"] for entry in entries} == {"demo"}
    assert [entry["event"] for entry in (entries[0], entries[-1])] == ["opened", "finished"]
    assert [entry["step"] for entry in entries if entry["event"] == "histograms"] == [2, 4]
    assert [entry["step"] for entry in entries if entry["event"] == "text"] == [4]


@pytest.mark.slow
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
    make_corpus(folder, "corpus")
    sizes = "--model.num-layers 1 --model.hidden-size 32 --model.max-positions 64 --data.sequence-length 64"
    length = "--training.steps 4 --schedule.warmup-steps 1 --optimizer.learning-rate 1e-2 --threads 1"
    assert main(f"train demo --data.train corpus --output demo/run {sizes} {length}".split()) == 0


def make_corpus(folder: Path, name: str) -> None:
    """Build a corpus of made-up texts with a validation split."""
    write_texts(folder / "texts")
    tokenizer, corpus = str(folder / "tokenizer"), str(folder / name)
    assert main(["tokenizer", "train", str(folder / "texts"), "--vocab-size", "300", "--output", tokenizer]) == 0
    words = ["corpus", "build", str(folder / "texts"), "--tokenizer", tokenizer, "--validation", "0.2"]
    assert main([*words, "--output", corpus]) == 0
