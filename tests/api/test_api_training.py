"""Trainings in Python: bit for bit those of the command, with the same errors, and their numbers as rows."""

import threading
from pathlib import Path

import pytest
import torch
from tiny_runs import RECIPE, digest, metrics_without_time, run_tiny
from tiny_text import build_tiny, one_line

import hornbook
from hornbook.__main__ import main
from hornbook.config import recipe_to_dict
from hornbook.errors import RecipeError, UserError
from hornbook.run.callbacks import Event

CPU = {"device": "cpu", "threads": 1}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


def test_a_run_is_that_of_the_command(tmp_path: Path, recipe: Path) -> None:
    run_tiny(tmp_path / "command", "--training.steps=5", "--optimizer.learning-rate=2e-3")
    overrides = {"training.steps": 5, "optimizer.learning-rate": 2e-3}
    run = hornbook.train(recipe, overrides, output=tmp_path / "api" / "run", **CPU)
    assert digest(tmp_path / "command", 5) == digest(tmp_path / "api", 5)
    assert metrics_without_time(tmp_path / "command") == metrics_without_time(tmp_path / "api")
    assert run.path == tmp_path / "api" / "run" and run.summary["step"] == 5
    assert run.recipe.training.steps == 5


def test_an_empty_output_is_not_the_working_directory(recipe: Path) -> None:
    with pytest.raises(UserError, match="output must not be empty"):
        hornbook.train(recipe, output="", **CPU)


def test_a_run_gives_its_model_and_its_rows(tmp_path: Path, recipe: Path) -> None:
    run = hornbook.train(str(recipe), {"training.steps": 2}, output=str(tmp_path / "runs" / "a"), **CPU)
    model = run.load(device="cpu")
    assert model.step == 2 and model.logits([1, 2, 3]).shape == (3, 70)
    rows = run.metrics("train")
    assert [row["step"] for row in rows] == [1, 2] and all(row["kind"] == "train" for row in rows)
    assert hornbook.metrics(tmp_path / "runs" / "a") == run.metrics()
    (summary,) = hornbook.runs(tmp_path / "runs")
    assert summary["folder"] == str(run.path) and summary["step"] == 2 and summary["loss"] == rows[-1]["loss"]


def test_the_same_call_returns_the_finished_run_and_a_longer_one_resumes(tmp_path: Path, recipe: Path) -> None:
    options = {"output": tmp_path / "run", **CPU}
    first = hornbook.train(recipe, {"training.steps": 3, "schedule.name": "constant"}, **options)
    again = hornbook.train(recipe, {"training.steps": 3, "schedule.name": "constant"}, **options)
    assert (first.summary["step"], again.summary["step"]) == (3, 3)
    longer = hornbook.train(recipe, {"training.steps": 4, "schedule.name": "constant"}, **options)
    assert longer.summary["step"] == 4
    steps = [row["step"] for row in longer.metrics("train")]
    assert steps == [1, 2, 3, 4]


def test_a_recipe_of_a_model_is_a_recipe(tmp_path: Path, recipe: Path) -> None:
    first = hornbook.train(recipe, {"training.steps": 1}, output=tmp_path / "first", **CPU)
    taken = first.load(device="cpu").recipe
    second = hornbook.train(
        taken, {"name": "second", "training.epochs": None}, output=tmp_path / "second", init_from=first.path, **CPU
    )
    assert recipe_to_dict(second.recipe) == recipe_to_dict(taken) | {"name": "second"}
    weights = [run.load(device="cpu").module.embedding.tokens for run in (first, second)]
    assert not torch.equal(*weights)


def test_overrides_take_paths_lists_and_none(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_tiny(tmp_path / "corpora" / "mine")
    monkeypatch.chdir(tmp_path)
    overrides = {"data.synthetic": False, "model.vocab_size": None, "training.steps": 1}
    for number, train in enumerate((Path("corpora/mine"), ["corpora/mine"], (tmp_path / "corpora/mine",))):
        run = hornbook.train(recipe, overrides | {"data.train": train}, output=f"runs/{number}", **CPU)
        assert run.recipe.data.train == (str(tmp_path / "corpora" / "mine"),)
        assert run.load(device="cpu").tokenizer.vocab_size == 300


def test_all_mistakes_are_reported_together(tmp_path: Path, recipe: Path) -> None:
    overrides = {"training.stepps": 3, "optimizer.learning_rate": "fast", "training.global_batch_size": 0}
    with pytest.raises(RecipeError) as caught:
        hornbook.train(recipe, overrides, output=tmp_path / "run", **CPU)
    assert len(caught.value.problems) == 3 and one_line(caught.value, "(overrides)", 'did you mean "training.steps"')
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        (("no-such-recipe",), {}, "no such bundled recipe"),
        (("demo",), {}, "no training data"),
        (("demo", {"steps": 3}), {}, "training.steps"),
        (
            ("demo", {"data.synthetic": True, "model.vocab_size": 70}),
            {"keep_optimizer": True},
            "keep_optimizer applies only with init_from",
        ),
        (("demo", {"data.synthetic": True, "model.vocab_size": 70}), {"device": "tpu"}, "no device 'tpu'"),
    ],
)
def test_bad_arguments_are_the_commands_errors(tmp_path: Path, arguments: tuple, options: dict, part: str) -> None:
    with pytest.raises(UserError) as caught:
        hornbook.train(*arguments, **{"output": tmp_path / "run", **CPU, **options})
    assert one_line(caught.value, part)


def test_no_run_is_one_line(tmp_path: Path) -> None:
    for call in (lambda: hornbook.metrics(tmp_path), lambda: hornbook.runs(tmp_path / "nothing")):
        with pytest.raises(UserError) as caught:
            call()
        assert one_line(caught.value)


def test_rows_of_no_such_kind_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        hornbook.metrics(tmp_path, kind="valid")
    assert one_line(caught.value, "kind is 'valid'; expected one of train, validation, task, topology, final, or None")


def test_a_run_may_be_in_a_thread(tmp_path: Path, recipe: Path) -> None:
    """Signals reach the main thread alone, so a run elsewhere listens to none."""
    finished: list[int] = []

    def train() -> None:
        finished.append(hornbook.train(recipe, {"training.steps": 1}, output=tmp_path / "run", **CPU).summary["step"])

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert finished == [1]


def test_a_run_of_the_command_is_loaded(tmp_path: Path, recipe: Path) -> None:
    words = ["train", str(recipe), "--training.steps", "1", "--output", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*words, "--threads", "1"]) == 0
    assert hornbook.load(tmp_path / "run", device="cpu").step == 1


def test_callbacks_see_each_step_and_each_validation(tmp_path: Path, recipe: Path) -> None:
    build_tiny(tmp_path / "corpus")
    seen: list[Event] = []
    options = {
        "data.train": tmp_path / "corpus",
        "model.vocab_size": 300,
        "training.steps": 3,
        "evaluation.every_steps": 2,
    }
    run = hornbook.train(recipe, options, output=tmp_path / "run", callbacks=[seen.append], **CPU)
    plain = hornbook.train(recipe, options, output=tmp_path / "plain", **CPU)
    order = [("step", 1), ("step", 2), ("validation", 2), ("step", 3), ("validation", 3)]
    assert [(event.kind, event.step) for event in seen] == order
    assert [event.loss for event in seen if event.kind == "step"] == [row["loss"] for row in plain.metrics("train")]
    assert [dict(event.values) for event in seen if event.kind == "validation"] == run.metrics("validation")
    assert seen[0].values.keys() >= {"learning_rate", "gradient_norm", "skipped", "causal_lm"}
    assert seen[0].model.device.type == "cpu"


def test_a_callback_that_fails_ends_the_run_with_its_name(tmp_path: Path, recipe: Path) -> None:
    def stumble(event: Event) -> None:
        if event.step == 3:
            raise KeyError("accuracy")

    options = {"training.steps": 4, "checkpoint.every_steps": 2}
    with pytest.raises(UserError) as caught:
        hornbook.train(recipe, options, output=tmp_path / "run", callbacks=[stumble], **CPU)
    message = str(caught.value)
    assert (
        "\n" not in message and "stumble failed after step 3: KeyError: 'accuracy'; the newest checkpoint in" in message
    )
    assert message.endswith("is that of step 2")
    again = hornbook.train(recipe, options, output=tmp_path / "run", **CPU)
    hornbook.train(recipe, options, output=tmp_path / "whole" / "run", **CPU)
    assert again.summary["step"] == 4
    assert digest(tmp_path, 4) == digest(tmp_path / "whole", 4), "the same run"
