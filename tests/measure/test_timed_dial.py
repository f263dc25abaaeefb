"""The dial on a real corpus: choice, reasons, resume, and what it refuses; and `hornbook train auto` end to end."""

import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_text import build_tiny

import hornbook
from hornbook.__main__ import main
from hornbook.config import Recipe, load_recipe
from hornbook.config.overrides import override_leaves
from hornbook.errors import DataError, PathError, UserError
from hornbook.measure import dial, timed_dial
from hornbook.measure.dial import auto_recipe, prepared_choice
from hornbook.measure.timed_dial import dial_time
from hornbook.plan.dial import BASE, Choice, Dial, Pilot, num_flops, options_of
from hornbook.run.run_folder import RunFolder
from hornbook.samples.sources import complete, open_sources

CPU = torch.device("cpu")
SHORT = {"data.sequence_length": 8, "precision.compute": "fp32", "evaluation.max_windows": 2}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"story {number}: the dog ran, and the cat sat on the mat. " * 100)
    build_tiny(tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.fixture(autouse=True)
def quick_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses without a training; ``test_pilot.py`` has the real ones."""

    def train_pilot(recipe_of: object, sources: object, tokens: int, device: object) -> Pilot:
        return Pilot(tokens=tokens, early=1.5, late=1.2)

    monkeypatch.setattr(dial, "train_pilot", train_pilot)


def chosen(corpus: Path, output: Path, writes: bool = True, **given: str):
    overrides = override_leaves({"data.train": str(corpus), **SHORT})
    return auto_recipe(Dial.of(given), overrides, output, CPU, writes=writes)


def test_a_choice_has_reasons_and_is_kept_for_the_resume(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.time()
    Clock(monkeypatch, token_seconds=1e-4)  # so that the load does not matter
    monkeypatch.setattr("hornbook.plan.dial.MOST_EPOCHS", 10**4)  # so that the little text allows a long run
    resolved = chosen(corpus, tmp_path / "run", time="1h")
    begun, seconds = RunFolder(path=tmp_path / "run").time_limit("auto")
    assert begun == pytest.approx(before, abs=1)
    assert seconds == 3600
    assert resolved.recipe.name == "auto"
    assert resolved.sources["model.num_layers"] == "time 1h"
    assert (
        resolved.notes[0].startswith("time 1h: ")
        and "layers of" in resolved.notes[0]
        and "tokens/s measured" in resolved.notes[0]
    )
    assert "bits per byte on held-out text like this, 80 % between" in resolved.notes[1]
    overrides = override_leaves({"data.train": str(corpus), **SHORT})
    again = prepared_choice(Dial.of({"time": "1h"}), overrides, tmp_path / "run")  # of a rank
    assert again.recipe == resolved.recipe
    assert again.notes == resolved.notes
    with pytest.raises(UserError, match="was chosen for time 1h, not time 90s"):
        prepared_choice(Dial.of({"time": "90s"}), overrides, tmp_path / "run")


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"dial": "tokens 200000"}',
        '{"dial": "tokens 200000", "options": 5}',
        '{"name": "auto", "dial": "time 1m", "options": {}, "reasons": [], "begun": 1e9}',
        '{"name": "auto", "dial": "time 1m", "options": {}, "reasons": [], "begun": 1e9, "seconds": "60"}',
    ],
)
def test_a_malformed_choice_is_one_line(corpus: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "choice.json").write_text(content)
    with pytest.raises(DataError, match=r"choice\.json: expected what `hornbook train auto` chose; restore the file"):
        RunFolder(path=tmp_path / "run").time_limit("auto")
    assert not RunFolder(path=tmp_path / "run").is_chosen("auto")
    with pytest.raises(DataError, match=r"choice\.json: expected what `hornbook train auto` chose; restore the file"):
        prepared_choice(Dial.of({"tokens": "200000"}), override_leaves({"data.train": str(corpus)}), tmp_path / "run")


def test_a_loss_is_predicted_where_a_pilot_is_a_small_part_of_the_run(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("hornbook.plan.dial", "hornbook.measure.dial"):  # so that the little text allows a long run
        monkeypatch.setattr(f"{module}.MOST_EPOCHS", 10**4)

    def second_line(**given: str) -> str:
        return chosen(corpus, tmp_path / "run", writes=False, **given).notes[1]

    assert second_line(tokens="4M").startswith("predicted loss ")
    assert second_line(tokens="200000") == "no loss is predicted: the run is too short to train a small model first"
    monkeypatch.setattr(dial, "bits_per_nat", lambda sources: None)  # a corpus of another project
    assert " nats per token on held-out text like this, 80 % between " in second_line(tokens="4M")
    monkeypatch.setattr(dial, "pilot_tokens", lambda unique, most: None)
    assert second_line(tokens="4M") == "no loss is predicted: the text is too short to train a small model first"


def test_printing_leaves_no_files(corpus: Path, tmp_path: Path) -> None:
    chosen(corpus, tmp_path / "run", writes=False, tokens="200000")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_refused_first(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(dial, "dial_time", None)
    with pytest.raises(PathError, match="is not writable: choose another `output`"):
        chosen(corpus, tmp_path / "run", time="1h")


def test_other_dials_need_no_measurement(corpus: Path, tmp_path: Path) -> None:
    resolved = chosen(corpus, tmp_path / "a", params="400k")
    assert RunFolder(path=tmp_path / "a").time_limit("auto") is None
    assert complete(resolved.recipe, open_sources(resolved.recipe)).model.num_parameters() <= 400_000
    flops = chosen(corpus, tmp_path / "b", flops="1e12")
    recipe = complete(flops.recipe, open_sources(flops.recipe))
    tokens = recipe.training.steps * recipe.training.global_batch_size * 8
    width = recipe.model.hidden_size // 64
    assert tokens * num_flops(width, recipe.model.vocab_size) <= 1.001e12
    memory = chosen(corpus, tmp_path / "c", memory="300MB")
    assert memory.recipe.model.hidden_size >= 64


@pytest.mark.slow
def test_too_little(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="time 8s is too little: a run takes 8 s to start and end"):
        chosen(corpus, tmp_path / "a", time="8s")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("dial", "told"),
    [
        ({"tokens": "1000"}, r"not enough for 50 steps of the smallest model here, .*, which take (\S+) tokens: give"),
        ({"flops": "1e6"}, r"not enough for 50 steps of the smallest model here, .*, which take (\S+) FLOPs: give"),
        ({"params": "10"}, r"too little for the smallest model, which has (\S+) parameters: give more"),
    ],
)
def test_an_amount_that_is_too_small_is_told_one_that_is_enough(
    corpus: Path, tmp_path: Path, dial: dict[str, str], told: str
) -> None:
    with pytest.raises(UserError, match=told) as caught:
        chosen(corpus, tmp_path / "a", **dial)
    enough = re.search(told, str(caught.value))
    assert enough is not None and not (tmp_path / "a").exists()
    resolved = chosen(corpus, tmp_path / "a", **dict.fromkeys(dial, enough[1].replace(",", "")))
    assert resolved.recipe.model.hidden_size == 64


def test_memory_that_is_too_little_for_the_smallest_model(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"memory 1MB is too little for the smallest model, which takes [0-9.]+ MiB"):
        chosen(corpus, tmp_path / "a", memory="1MB")


def test_too_little_text(tmp_path: Path) -> None:
    build_tiny(tmp_path / "corpus")
    with pytest.raises(
        UserError, match=r"tokens, too few for 50 steps in 3 epochs: build a corpus of at least 34,134$"
    ):
        chosen(tmp_path / "corpus", tmp_path / "a", time="10m")  # before anything is timed


def test_the_timed_depth_is_the_chosen_one(corpus: Path) -> None:
    base = chosen(corpus, corpus.parent / "none", writes=False, tokens="200000")
    recipe = complete(base.recipe, open_sources(base.recipe))
    found = dial_time(lambda: 30.0, 10**9, lambda choice: recipe, CPU)
    assert found.best.width in found.token_seconds
    assert found.best.tokens == pytest.approx(30 / found.token_seconds[found.best.width], rel=1e-3)
    assert all(0 < abs(other.width - found.best.width) <= 2 for other in found.others)


class Clock:
    """A machine on which a token of width 1 takes ``token_seconds``, and preparing a width ``preparation`` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, token_seconds: float, preparation: float = 0.0) -> None:
        self.begun = self.now = time.time()
        self.steps = list[int]()
        monkeypatch.setattr("time.time", lambda: self.now)
        monkeypatch.setattr(timed_dial, "hornbook_step", lambda recipe, world: recipe)
        fits = SimpleNamespace(fits=True)
        monkeypatch.setattr(timed_dial, "plan_here", lambda *given: self.advance(preparation) or fits)

        def timed(recipe: Recipe, device: torch.device) -> tuple[int, float]:
            width, tokens = recipe.model.hidden_size // 64, recipe.training.global_batch_size * recipe.sequence_length
            taken = token_seconds * width * tokens
            self.steps.append(width)
            self.advance(taken)
            return tokens, taken

        monkeypatch.setattr(timed_dial, "timed", timed)

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_a_time_that_is_too_short_is_known_soon(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute on a busy machine once took 115 s to be refused."""
    clock = Clock(monkeypatch, token_seconds=2e-3)  # 4 s for the smallest batch, of 2,048 tokens
    told = r"time 1m is not enough for 50 steps of the smallest model .*, which take 23\d s in all: give more"
    with pytest.raises(UserError, match=told):
        chosen(corpus, tmp_path / "a", time="1m")
    assert clock.steps == [1, 1]
    assert clock.now - clock.begun < 0.15 * 60
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("preparation", [0.0, 30.0])
def test_steps_are_timed_for_a_tenth_of_the_time(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preparation: float
) -> None:
    clock = Clock(monkeypatch, token_seconds=1e-4, preparation=preparation)
    resolved = chosen(corpus, tmp_path / "a", writes=False, time="2m")
    spent = clock.now - clock.begun - preparation
    assert clock.steps == ([1, 1] if preparation else [1] * 4), "what prepares the steps leaves less time for them"
    assert spent < 0.1 * 120
    assert resolved.recipe.model.hidden_size == 64


def test_further_depths_are_timed_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe_of(choice: Choice) -> Recipe:
        options = {**options_of(choice.width, choice.tokens), "data.synthetic": True, "model.vocab_size": 64}
        return load_recipe(BASE, override_leaves(options)).recipe

    for share, is_over in ((0.0, False), (0.2, True)):
        clock = Clock(monkeypatch, token_seconds=1e-7, preparation=share * 1000)
        found = dial_time(lambda clock=clock: clock.begun + 1000 - clock.now, 10**9, recipe_of, CPU)
        assert (len({*clock.steps}) == 1) == is_over
        assert found.best.width in found.token_seconds
        assert all(other.width != found.best.width for other in found.others)


def test_a_smaller_model_than_the_timed_one_is_chosen_untimed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25 minutes on a busy machine once gave the 128 columns that were timed first, 20 % worse than 64 by the law."""
    clock = Clock(monkeypatch, token_seconds=1e-2, preparation=200)
    monkeypatch.setattr("hornbook.plan.dial.MOST_EPOCHS", 10**4)
    resolved = chosen(corpus, tmp_path / "a", writes=False, time="25m")
    assert clock.steps == [2, 2], "no time is left to time others"
    assert resolved.recipe.model.hidden_size == 64
    assert not [note for note in resolved.notes if "measured" in note or "of 64 columns would" in note]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["auto"], "the recipe auto takes one of --time"),
        (["auto", "--time", "0m"], "--time is '0m': expected a time"),
        (["auto", "--time", "-3m"], "--time is '-3m': expected a time"),
        (["auto", "--time", "5m", "--params", "3M"], "got --time and --params"),
        (["auto", "--time", "5m", "--steps", "9"], "--training.steps contradicts"),
        (["auto", "--time", "5m", "--model.num-layers", "7"], "--model.num-layers contradicts --time, which sets it"),
        (["auto", "--tokens", "5M", "--training.global-batch-size", "3"], "--training.global-batch-size contradicts"),
        (["auto", "--time", "5m", "--schedule.name", "cosine"], "remove --schedule.name and --schedule.decay-end"),
        (["auto", "--time", "5m", "--schedule.decay-end", "500"], "remove --schedule.name and --schedule.decay-end"),
        (["demo", "--time", "5m"], "--time applies only to the recipe auto"),
    ],
)
def test_mistakes_are_one_line(words: list[str], told: str, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words, "--data.train", str(corpus), "--output", str(corpus / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not (corpus / "out").exists()


@pytest.mark.slow
def test_a_run_ends_in_time_and_resumes_as_finished(corpus: Path, tmp_path: Path) -> None:
    begun = time.time()
    overrides = {"data.train": str(corpus), **SHORT}
    run = hornbook.train("auto", overrides, output=tmp_path / "run", device="cpu", time="90s")
    assert time.time() - begun < 99
    steps = json.loads((tmp_path / "run" / "choice.json").read_text())["options"]["training.steps"]
    assert run.summary["step"] > steps / 4 or run.summary["stopped_early"]
    again = hornbook.train("auto", overrides, output=tmp_path / "run", device="cpu", time="90s")
    assert again.summary["step"] == run.summary["step"]
    by_folder = hornbook.train(str(tmp_path / "run"), device="cpu")
    assert by_folder.summary["step"] == run.summary["step"]
