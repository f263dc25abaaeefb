"""Starting and taking up runs by the command line: what goes on, what is refused, and what a refusal leaves."""

import json
from pathlib import Path

import pytest
from cases import mostly_slow
from tiny_runs import RECIPE, digest, stop_after

from hornbook.__main__ import main
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train
from hornbook.run.training_run import TrainingRun

DECAY = ["--training.steps", "8", "--schedule.name", "cosine"]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny recipe, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return "tiny.toml"


def command(*words: str) -> int:
    return main(["train", *words, "--threads", "1", "--device", "cpu"])


def stopped(monkeypatch: pytest.MonkeyPatch, step: int, *words: str) -> int:
    """Train until a signal comes in step ``step``; return the exit code."""
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        return command(*words)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# train RUN


def test_a_run_folder_resumes_after_a_move(recipe, tmp_path, monkeypatch, capsys):
    assert command(recipe, "--output", "whole/run") == 0
    assert stopped(monkeypatch, 4, recipe, "--output", "cut/run") == 75
    capsys.readouterr()
    (tmp_path / "cut").rename(tmp_path / "moved")
    (tmp_path / recipe).unlink()
    assert command("moved/run", "--tracking.log-every-steps", "2") == 0
    assert "after step 4" in capsys.readouterr().err
    assert digest(tmp_path / "moved", 8) == digest(tmp_path / "whole", 8)
    assert not (tmp_path / "runs").exists() and not (tmp_path / "cut").exists(), "no new run elsewhere"


def test_the_recipe_inside_a_run_means_the_run(recipe, tmp_path, monkeypatch):
    assert stopped(monkeypatch, 4, recipe, "--output", "cut/run") == 75
    assert command("cut/run/recipe.toml") == 0
    assert (tmp_path / "cut/run/checkpoints/step-00000008").is_dir() and not (tmp_path / "runs").exists()
    assert command("cut/run", "--output", "other", "--training.seed", "7", "--training.steps", "1") == 0
    assert (tmp_path / "other/checkpoints/step-00000001").is_dir()


def test_a_run_folder_without_a_slash_resumes(recipe, monkeypatch, capsys):
    assert stopped(monkeypatch, 4, recipe, "--output", "mine") == 75
    assert command("mine") == 0
    assert "after step 4" in capsys.readouterr().err


def test_a_finished_run_folder_has_nothing_to_do(recipe, capsys):
    assert command(recipe, "--output", "runs/a") == 0
    capsys.readouterr()
    assert command("runs/a") == 0
    assert "runs/a is finished: 8 steps; nothing to do" in capsys.readouterr().err


def test_a_run_cannot_get_fewer_steps_than_are_done(recipe, tmp_path, capsys):
    assert command(recipe, "--output", "runs/a") == 0
    before = files_of(tmp_path / "runs/a")
    capsys.readouterr()
    assert command("runs/a", "--training.steps", "2") == 2
    assert "the run would have 2 steps, but 8 are done: keep its length, or choose another" in capsys.readouterr().err
    assert files_of(tmp_path / "runs/a") == before


def test_what_may_not_change_is_refused_and_the_recipe_of_the_run_stays(recipe, tmp_path, monkeypatch, capsys):
    assert stopped(monkeypatch, 4, recipe, "--output", "runs/a") == 75
    before = files_of(tmp_path / "runs/a")
    capsys.readouterr()
    assert command("runs/a", "--optimizer.learning-rate", "1") == 2
    assert "contains another run: optimizer.learning_rate was 0.01 and is now 1.0" in capsys.readouterr().err
    assert command("runs/a", "--evaluation.early-stopping-patience", "2") == 2
    assert "early stopping needs the validation loss" in capsys.readouterr().err
    assert files_of(tmp_path / "runs/a") == before
    assert command("runs/a") == 0


def test_a_folder_with_weights_alone_says_how_to_use_them(recipe, tmp_path, capsys):
    (tmp_path / "imported" / "checkpoints").mkdir(parents=True)
    assert command("./imported") == 2
    assert "neither a recipe file nor a run; to start a run from its weights: --init-from" in capsys.readouterr().err


def test_a_run_without_its_recipe_says_so_and_its_first_command_writes_it_again(recipe, tmp_path, capsys):
    assert command(str(recipe), "--output", "runs/a") == 0
    (tmp_path / "runs/a/recipe.toml").unlink()
    assert command("runs/a") == 2
    line = (
        "hornbook: error: runs/a: is the folder of a run, but its recipe.toml is missing; restore it, or repeat the "
        "command that started the run with --output, which writes it again"
    )
    assert capsys.readouterr().err.splitlines()[-1] == line
    assert command(str(recipe), "--output", "runs/a") == 0
    assert (tmp_path / "runs/a/recipe.toml").is_file()


def test_a_mistyped_run_is_named(recipe, tmp_path, capsys):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert command("runs/mien") == 2
    assert 'runs/mien: no such recipe file or run; did you mean "runs/mine"?' in capsys.readouterr().err


def test_a_stopped_run_names_the_command_that_resumes_it(recipe, monkeypatch, capsys):
    assert stopped(monkeypatch, 4, recipe, "--output", "runs/my run") == 75
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "hornbook: stopped by SIGTERM; step 4 of 8 is saved in runs/my run; resume with `hornbook train 'runs/my run'`"
    )


def test_a_run_that_is_named_like_a_bundled_recipe_is_named_as_a_path(recipe, monkeypatch, capsys):
    assert stopped(monkeypatch, 4, recipe, "--output", "demo") == 75
    assert capsys.readouterr().err.endswith("resume with `hornbook train ./demo`\n")
    assert command("./demo") == 0


def test_a_run_from_given_weights_takes_them_when_it_was_stopped_before_its_first_step(recipe, tmp_path, monkeypatch):
    assert command(recipe, "--output", "source") == 0
    words = (recipe, "--init-from", "source", "--training.seed", "5")
    assert command(*words, "--output", "whole/run") == 0

    def stop(run: TrainingRun) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "batches", stop)
        assert command(*words, "--output", "cut/run") == 130
    assert command("cut/run") == 0
    assert digest(tmp_path / "cut", 8) == digest(tmp_path / "whole", 8)


# The learning rate of a run whose length was changed


def test_a_longer_decay_is_refused_with_both_rates(recipe, tmp_path, capsys):
    assert command(recipe, *DECAY, "--output", "runs/a") == 0
    before = files_of(tmp_path / "runs/a")
    capsys.readouterr()
    assert command("runs/a", "--training.steps", "40") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    rates = [json.loads(row)["learning_rate"] for row in (tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()]
    assert f"the learning rate was {rates[-1]:.3g} at step 8 of 8 and would be 0.00956 at step 9 of 40" in line
    assert "accept the jump with --allow-learning-rate-change" in line
    assert files_of(tmp_path / "runs/a") == before
    assert (
        command("runs/a", "--training.steps", "40", "--allow-learning-rate-change", "--checkpoint.every-steps=9") == 0
    )
    assert command("runs/a") == 0, "the accepted length is that of the run"


def test_a_decay_under_way_is_refused_too_and_a_shorter_one(recipe, monkeypatch, capsys):
    assert stopped(monkeypatch, 5, recipe, *DECAY, "--output", "runs/a") == 75
    for steps in ("40", "6"):
        capsys.readouterr()
        assert command("runs/a", "--training.steps", steps) == 2
        assert "the learning rate was" in capsys.readouterr().err
    assert command("runs/a", "--training.steps", "9") == 0, "a change within that of a step is no jump"


@pytest.mark.parametrize(
    "schedule",
    mostly_slow(
        [
            ["--schedule.name", "constant"],
            ["--schedule.decay-end", "8"],
            ["--schedule.name", "natural_exponential", "--schedule.stair-steps", "2"],
            ["--schedule.name", "by_step", "--schedule.factors", "0=1,4=0.5"],
        ]
    ),
)
def test_a_schedule_that_can_be_extended_continues(recipe, tmp_path, schedule):
    assert command(recipe, *schedule, "--output", "runs/a") == 0
    assert command("runs/a", "--training.steps", "10") == 0
    assert (tmp_path / "runs/a/checkpoints/step-00000010").is_dir()


# Refused starts


@pytest.mark.parametrize(
    "words",
    [
        ["--data.synthetic", "false", "--data.train", "missing"],
        ["--evaluation.tasks", "lambada"],
        ["--evaluation.early-stopping-patience", "2"],
        ["--model.hidden-size", "800000"],
        ["--optimizer.no-decay", "nothing*"],
        ["--init-from", "runs/missing"],
        ["--init-from", "source", "--model.num-layers", "3"],
        ["--init-from", "source", "--init-optimizer", "keep", "--optimizer.name", "sgd"],
        ["--device", "mps"],
    ],
)
def test_a_refused_start_leaves_nothing(recipe, tmp_path, words, capsys):
    if "source" in words:
        assert command(recipe, "--output", "source", "--training.steps", "1") == 0
    before = files_of(tmp_path)
    (tmp_path / "there").mkdir()
    for output in ("new/deep/run", "there"):
        assert main(["train", recipe, "--device", "cpu", *words, "--output", output]) == 2
    assert files_of(tmp_path) == before
    assert not (tmp_path / "new").exists() and list((tmp_path / "there").iterdir()) == []


def test_notes_are_shown_when_the_run_starts(recipe, capsys):
    assert command(recipe, "--training.global-batch-size", "1", "--training.steps", "1") == 0
    assert "training.micro_batch_size is 1, the global batch size, instead of 2 (tiny.toml:" in capsys.readouterr().err


def test_a_python_caller_takes_up_a_run_without_the_command_line(recipe, tmp_path, monkeypatch):
    from hornbook.run.start_recipe import start_recipe

    assert stopped(monkeypatch, 4, recipe, "--output", "runs/a") == 75
    summary = train(start_recipe("runs/a"), output=None, device="cpu", threads=1)
    assert (summary["run"], summary["step"]) == ("runs/a", 8)
    other = start_recipe(recipe, init_from=InitFrom(source="runs/a"), output=tmp_path / "b")
    assert other.sources["model.num_layers"].startswith("initial weights, runs/a/checkpoints/step-00000008")
