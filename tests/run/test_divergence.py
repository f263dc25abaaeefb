"""Divergence: weights that an update ruined are finite and give NaN, and must not displace the ones before them."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
import torch
from cases import mostly_slow
from tiny_text import build_tiny

from hornbook import checkpoint
from hornbook.errors import DivergedError, StoppedBySignal
from hornbook.track.metrics import read
from hornbook.track.runs import summarize

LENGTH = ("--training.steps=70", "--checkpoint.every-steps=5", "--evaluation.every-steps=5")
KEEPS = (("--checkpoint.keep-last=1", "--checkpoint.keep-best=false"), ("--checkpoint.keep-last=2",))


def ruined_after(step: int) -> tuple[str, ...]:
    """Options of a run whose update of step ``step`` is so large that the next loss is NaN; the weights are finite."""
    factors = f"--schedule.factors=0=1,{step - 1}=1e33,{step}=1"
    return (*LENGTH, "--schedule.name=by_step", factors, "--optimizer.clip-norm=none")


def kept(folder: Path) -> list[int]:
    """Steps of the checkpoints that a resume may take; each of them is sound."""
    found = checkpoint.list_checkpoints(folder / "run" / "checkpoints")
    assert not [info.problems for info in found if info.problems]
    return [info.step or 0 for info in found]


def largest_weight(folder: Path) -> float:
    """The largest magnitude of a weight in the newest sound checkpoint."""
    newest = checkpoint.newest_sound(folder / "run" / "checkpoints", pytest.fail)
    assert newest is not None
    return max(float(tensor.abs().max()) for tensor in checkpoint.load(newest).tensors["model"].values())


@pytest.mark.parametrize("keep", mostly_slow([(keep,) for keep in KEEPS]), ids=str)
@pytest.mark.parametrize(("ruined", "last_good"), mostly_slow([(15, 10), (12, 10)]))
def test_what_diverged_never_displaces_a_good_checkpoint(
    tmp_path: Path, keep: tuple[str, ...], ruined: int, last_good: int
) -> None:
    with pytest.raises(DivergedError, match=rf"in 20 steps in a row up to step {ruined + 20}, .* step {last_good}:"):
        tiny_runs.run_tiny(tmp_path, *ruined_after(ruined), *keep)
    assert kept(tmp_path)[-1] == last_good
    assert largest_weight(tmp_path) < 10
    assert (tmp_path / "run/checkpoints/step-00000015.diverged").is_dir() == (ruined == 15)


@pytest.mark.parametrize(
    ("ruined", "validated", "expected"),
    mostly_slow([(15, False, [10, 15]), (70, True, [15]), (15, True, [10, 15]), (70, False, [10, 15])], 2),
)
def test_the_newest_checkpoint_displaces_the_one_before_once_its_loss_is_known(
    tmp_path: Path, ruined: int, validated: bool, expected: list[int]
) -> None:
    """The run ends right after the save, before a skipped step could tell."""
    corpus: tuple[str, ...] = ()
    if validated:
        build_tiny(tmp_path / "corpus")
        corpus = ("--data.train", str(tmp_path / "corpus"), "--data.synthetic=false", "--model.vocab-size=none")
    tiny_runs.run_tiny(tmp_path, *ruined_after(ruined), *KEEPS[0], "--training.steps=15", *corpus)
    assert kept(tmp_path) == expected


def test_a_signal_among_skipped_steps_saves_none_of_them_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, 16)
        with pytest.raises(StoppedBySignal, match=r"step 16 was skipped, so it is not saved; .* step 10; resume with"):
            tiny_runs.run_tiny(tmp_path, *ruined_after(12), *KEEPS[0])
    assert kept(tmp_path) == [5, 10]
    with pytest.raises(DivergedError, match="up to step 32"):  # from step 10 on, as without the signal
        tiny_runs.run_tiny(tmp_path, *ruined_after(12), *KEEPS[0])
    rows = [row["step"] for row in read(tmp_path / "run/metrics.jsonl") if row["kind"] == "train"]
    assert rows == list(range(1, 33))


def test_a_run_that_diverged_promises_no_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=rf"up to step 22, .*; {tmp_path}/run has no checkpoint: lower"):
        tiny_runs.run_tiny(tmp_path, *ruined_after(2), "--checkpoint.every-steps=30")
    assert not list((tmp_path / "run").rglob("step-*"))
    assert summarize(tmp_path / "run").state == "diverged"
    tiny_runs.run_tiny(tmp_path / "well")
    assert summarize(tmp_path / "well" / "run").state == "finished"


def test_a_run_that_ends_among_skipped_steps_has_diverged(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="in 3 steps in a row up to step 15"):
        tiny_runs.run_tiny(tmp_path, *ruined_after(12), "--training.steps=15", *KEEPS[0])
    assert kept(tmp_path) == [5, 10]


def test_a_single_skipped_step_is_not_saved_and_the_next_due_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from hornbook.objective import CausalLM

    sums, calls = CausalLM.sums, []

    def poisoned(self: CausalLM, *arguments: object) -> dict[str, object]:
        calls.append(1)
        values = sums(self, *arguments)  # type: ignore[arg-type]
        return {name: value * (math.nan if len(calls) == 10 else 1.0) for name, value in values.items()}

    monkeypatch.setattr(CausalLM, "sums", poisoned)  # two micro-batches a step: the fifth is poisoned
    tiny_runs.run_tiny(tmp_path, "--training.steps=15", "--checkpoint.every-steps=5", "--evaluation.every-steps=15")
    assert kept(tmp_path) == [10, 15]
    assert "checkpoint not saved: step 5 was skipped" in capfd.readouterr().err


def test_gradients_that_overflow_at_the_smallest_scale_end_the_run(tmp_path):
    """Weights of a million have finite losses, and gradients that no scale brings into fp16."""
    words = ("--model.initializer-std=1e6", "--precision.gradients=fp16", "--optimizer.clip-norm=none")
    with pytest.raises(DivergedError, match="loss scale fell to its minimum of 1, and the gradients of step 3 still"):
        tiny_runs.run_tiny(tmp_path, *words, "--precision.loss-scaling=dynamic", "--precision.loss-scale=4")


def test_gradients_that_overflow_at_a_static_scale_blame_the_scale(tmp_path):
    with pytest.raises(DivergedError, match=r"lower precision\.loss_scale or set precision\.loss_scaling to"):
        tiny_runs.run_tiny(tmp_path, "--precision.compute=fp16", "--precision.loss-scale=1e9", "--training.steps=2")


@pytest.mark.parametrize(
    "scale", mostly_slow(["--precision.loss-scaling=dynamic", "--precision.loss-scaling=histogram"])
)
def test_a_run_in_fp16_resumes_with_its_scale_bit_for_bit(tmp_path, scale, monkeypatch):
    words = ("--precision.compute=fp16", scale, "--precision.loss-scale=256", "--precision.loss-scale-interval=2")
    narrow = [f"--precision.{what}=bf16" for what in ("weights", "gradients", "first-moment", "second-moment")]
    tiny_runs.run_tiny(tmp_path / "whole", *words, *narrow)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, 5)
        with pytest.raises(StoppedBySignal):
            tiny_runs.run_tiny(tmp_path / "cut", *words, *narrow)
    tiny_runs.run_tiny(tmp_path / "cut", *words, *narrow)
    assert tiny_runs.digest(tmp_path / "cut", 8) == tiny_runs.digest(tmp_path / "whole", 8)
    scales = [row["loss_scale"] for row in read(tmp_path / "whole" / "run" / "metrics.jsonl") if row["kind"] == "train"]
    assert len(set(scales)) > 2


def on_texts(folder: Path) -> tuple[str, ...]:
    """Options of a run on texts, which generates a sample after every step."""
    if not (folder / "corpus").exists():
        build_tiny(folder / "corpus")
    data = ("--data.train", str(folder / "corpus"), "--data.synthetic=false", "--model.vocab-size=none")
    return (*data, "--tracking.sample-every-steps=1", "--tracking.sample-tokens=2")


def test_a_sample_of_a_model_that_diverged_says_so(tmp_path: Path) -> None:
    """The checkpoint's moments are NaN, so the first update ruins the weights before the sample that is due."""
    folder = tmp_path / "run/checkpoints"
    tiny_runs.run_tiny(tmp_path, "--training.steps=3", "--schedule.name=constant", *on_texts(tmp_path))
    contents = checkpoint.load(checkpoint.folder_of(folder, 3))
    moments = {name: torch.full_like(moment, math.nan) for name, moment in contents.tensors["optimizer"].items()}
    shutil.rmtree(checkpoint.folder_of(folder, 3))
    checkpoint.save(folder, replace(contents, tensors={**contents.tensors, "optimizer": moments}))
    with pytest.raises(DivergedError, match=r"logits are not finite after step 4, .* step 3: lower") as caught:
        tiny_runs.run_tiny(tmp_path, "--training.steps=4", "--schedule.name=constant", *on_texts(tmp_path))
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)
    assert kept(tmp_path) == [3]
    sessions = json.loads((tmp_path / "run/environment.json").read_text())["sessions"]
    assert sessions[-1]["ended"] == "diverged"
