"""What keeps a recipe from training is found all at once, by the checks of the training itself, without a trace."""

import hashlib
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import run_tiny, tiny_recipe
from tiny_text import build_tiny

from hornbook.errors import UserError
from hornbook.run.early import bytes_of_training
from hornbook.run.examine import Findings, choose_devices, examine
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train
from hornbook.run.planning import plan_here
from hornbook.storage import lock_folder

CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    build_tiny(tmp_path / "corpus")
    return tmp_path / "corpus"


def look(
    folder: Path, *overrides: str, processes: int = 1, init_from: InitFrom | None = None
) -> list[tuple[str, str, str]]:
    """Examine the tiny recipe; what lies in the folder stays as it is."""
    resolved = tiny_recipe(folder, *overrides)
    before = contents(folder)
    found = examine(resolved.recipe, folder / "run", CPU, processes, init_from)
    assert contents(folder) == before
    assert all("\n" not in finding.message for finding in found)
    return [(finding.level, finding.about, finding.message) for finding in found]


def contents(folder: Path) -> dict[Path, str]:
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


def with_data(corpus: Path) -> tuple[str, ...]:
    return "--data.synthetic=false", f"--data.train={corpus}", "--model.vocab-size=none"


def test_a_recipe_that_trains_has_no_findings(tmp_path: Path, corpus: Path) -> None:
    assert look(tmp_path) == []
    assert look(tmp_path, *with_data(corpus)) == []
    assert look(tmp_path, processes=2) == []


def test_all_mistakes_are_found_at_once(tmp_path: Path) -> None:
    mistakes = ("--data.synthetic=false", "--data.train=absent,gone", "--data.validation=lost")
    found = look(tmp_path, *mistakes, processes=3)
    assert [(level, about) for level, about, _ in found] == [("error", "ranks")] + [("error", "data")] * 3
    assert all(name in message for name, (_, _, message) in zip(("absent", "gone", "lost"), found[1:], strict=True))
    assert "does not divide into micro-batches of 2 on 3 ranks" in found[0][2]


def test_a_vocabulary_that_is_too_small_hides_nothing_else(tmp_path: Path, corpus: Path) -> None:
    arguments = (*with_data(corpus)[:2], "--model.vocab-size=70", "--evaluation.early-stopping-patience=2")
    found = look(tmp_path, *arguments, "--schedule.warmup-steps=99")
    assert [(level, about) for level, about, _ in found] == [("error", "data"), ("warning", "recipe")]
    assert "were made with 300 tokens" in found[0][2] and "lower it, or use" in found[1][2]
    with pytest.raises(UserError) as refused:
        train(tiny_recipe(tmp_path, *arguments), output=tmp_path / "run", device="cpu", threads=1)
    assert str(refused.value) == found[0][2]


def test_what_the_run_measures_is_checked(tmp_path: Path, corpus: Path) -> None:
    found = look(tmp_path, "--evaluation.tasks=masked_tokens,lambada", "--evaluation.early-stopping-patience=2")
    assert [(level, about) for level, about, _ in found] == [("error", "evaluation")] * 2
    assert "early stopping needs the validation loss" in found[0][2] and "masked_tokens" in found[1][2]
    found = look(tmp_path, *with_data(corpus), "--evaluation.tasks=lambada")
    assert [about for _, about, message in found if "`evaluation.task_data=FILE`" in message] == ["evaluation"]


def test_a_tracker_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    (missing, unknown) = look(tmp_path, "--tracking.trackers=wandb,tensorbord")
    assert missing[:2] == unknown[:2] == ("error", "trackers")
    assert "pip install 'hornbook[wandb]'" in missing[2] and 'did you mean "tensorboard"?' in unknown[2]


def test_a_model_and_a_batch_without_memory(tmp_path: Path) -> None:
    large = ("--model.hidden-size=65536", "--model.num-layers=64")
    found = look(tmp_path, *large)
    assert found[0][:2] == ("error", "memory")
    assert "parameters would fit, with smaller sizes in [model]; or keep the model in files" in found[0][2]
    assert any(about == "disk" and "lower checkpoint.keep_last" in message for _, about, message in found)
    found = look(tmp_path, "--training.global-batch-size=4000000000000")
    assert ("error", "memory") in [(level, about) for level, about, _ in found]


def test_ranks_that_need_more_memory_than_there_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, beside = (plan_here(tiny_recipe(tmp_path).recipe, ranks, CPU).peak for ranks in (1, 2))
    assert alone < 1.9 * beside, "or one rank would not fit"
    monkeypatch.setattr("hornbook.run.planning.available_memory_bytes", lambda: int(1.95 * beside))
    assert look(tmp_path) == []
    ((level, about, message),) = look(tmp_path, processes=2)
    assert (level, about) == ("warning", "memory")
    assert "each of 2 ranks is predicted to need up to" in message
    assert "is available now for all of them: add `" in message


def test_activations_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state alone would fit; the advice makes the rest fit, too."""
    recipe = tiny_recipe(tmp_path).recipe
    available = int(0.95 * plan_here(recipe, 1, CPU).peak)
    assert bytes_of_training(recipe) < available
    monkeypatch.setattr("hornbook.run.planning.available_memory_bytes", lambda: available)
    ((level, about, message),) = look(tmp_path)
    assert (level, about) == ("warning", "memory")
    assert "the run is predicted to need" in message
    words = message.partition(": add ")[2].partition(", or end other programs")[0].split()
    options = [f"--{word.strip('`')}" for word in words]
    assert options
    assert look(tmp_path, *options) == []


def test_a_layout_that_the_ranks_do_not_fill(tmp_path: Path) -> None:
    ((level, about, message),) = look(tmp_path, "--parallel.tensor-parallel=2", processes=3)
    assert (level, about) == ("error", "ranks") and "needs a multiple of 2 ranks" in message
    assert look(tmp_path, "--parallel.tensor-parallel=2", processes=2) == []


def test_the_folder_of_another_run(tmp_path: Path) -> None:
    run_tiny(tmp_path)
    assert look(tmp_path, "--training.steps=9") == []
    ((level, about, message),) = look(tmp_path)
    assert (level, about) == ("warning", "output") and "is finished: 8 steps" in message
    found = look(tmp_path, "--model.hidden-size=64")
    assert ("error", "output") in [(level, about) for level, about, _ in found]
    assert "contains another run: model.hidden_size was 32 and is now 64" in found[0][2]
    assert found[-1][:2] == ("error", "checkpoints") and "none can be read" in found[-1][2]


def test_a_length_that_makes_the_learning_rate_jump(tmp_path: Path) -> None:
    run_tiny(tmp_path)
    ((level, about, message),) = look(tmp_path, "--training.steps=20")
    assert (level, about) == ("error", "schedule") and "`allow_learning_rate_change`" in message
    recipe = tiny_recipe(tmp_path, "--training.steps=20").recipe
    assert examine(recipe, tmp_path / "run", CPU, allow_rate_change=True) == []


def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    run_tiny(tmp_path)
    (tmp_path / "run" / "checkpoints" / "step-00000008" / "manifest.json").write_text("{")
    ((level, about, message),) = look(tmp_path)
    assert (level, about) == ("warning", "checkpoints")
    assert "step-00000008" in message and "will be skipped unless you restore it" in message


def test_a_folder_that_is_in_use_or_a_file(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"):
        assert [finding[:2] for finding in look(tmp_path)] == [("error", "output")]
    other = tmp_path / "other"
    other.mkdir()
    (other / "run").write_text("")
    assert "is a file: choose another `output`" in look(other)[0][2]


def test_weights_to_start_from_that_do_not_fit(tmp_path: Path) -> None:
    run_tiny(tmp_path / "old")
    new = tmp_path / "new"
    new.mkdir()
    source = InitFrom(source=str(tmp_path / "old" / "run"))
    assert look(new, init_from=source) == []
    ((level, about, message),) = look(new, "--model.hidden-size=64", init_from=source)
    assert (level, about) == ("error", "weights") and "hidden_size 32 there and 64 here" in message
    assert look(new, init_from=InitFrom(source="absent"))[0][:2] == ("error", "weights")


def test_a_device_that_the_machine_lacks() -> None:
    findings = Findings()
    assert choose_devices("cuda:99", 1, findings) == CPU
    assert [(finding.level, finding.about) for finding in findings.found] == [("error", "device")]
    assert "choose another `device`" in findings.found[0].message


def test_no_product_is_timed_for_a_model_that_no_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    monkeypatch.setattr("hornbook.run.examine.scarce_memory", lambda *given: timed.append(given))
    for size in ("1000000", "32"):
        recipe = tiny_recipe(tmp_path, f"--model.hidden-size={size}").recipe
        found = examine(recipe, tmp_path / "run", torch.device("cpu"))
        assert any("parameters takes" in finding.message for finding in found) == (size != "32")
    assert len(timed) == 1
