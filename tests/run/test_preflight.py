"""Warnings before the first step: lengths, sizes and ends of texts that look like mistakes."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_runs
import torch
from tiny_text import build_tiny

from hornbook.checkpoint import Shard
from hornbook.config import (
    BertConfig,
    ByStepConfig,
    CausalLMConfig,
    CosineConfig,
    DataConfig,
    GPTConfig,
    MaskedLMConfig,
    PolynomialConfig,
    Recipe,
    TrainingConfig,
)
from hornbook.config.sections import CheckpointConfig
from hornbook.errors import StorageError
from hornbook.run.preflight import find_mistakes, find_unused_vocabulary, refuse_full_disk
from hornbook.samples.sources import Sources


def recipe(**sections) -> Recipe:
    return Recipe(training=TrainingConfig(steps=20), **sections)


def sources(vocab_size: int | None) -> Sources:
    class Store:
        pass

    store = Store()
    store.end_of_text = "stored"
    store.vocab_size = vocab_size
    return Sources(train=(store,))


def mistakes(given: Recipe, num_samples: int = 1000, stores: Sources | None = None) -> list[str]:
    samples = SimpleNamespace(num_samples=num_samples, noun="window")
    return [*find_mistakes(given, samples, stores or sources(300), 20)]


def test_a_warmup_that_is_longer_than_the_run() -> None:
    assert mistakes(recipe(schedule=CosineConfig(warmup_steps=2000))) == [
        "schedule.warmup_steps is 2000, but the run has 20 steps: the learning rate only reaches 6e-06 of 0.0006; "
        "lower it, or use `schedule.warmup_fraction`"
    ]
    by_root = recipe(schedule=PolynomialConfig(warmup_steps=80, warmup_power=0.5))
    assert "the learning rate only reaches 0.0003 of 0.0006" in mistakes(by_root)[0]


@pytest.mark.parametrize(
    "schedule",
    [CosineConfig(), CosineConfig(warmup_steps=20), CosineConfig(warmup_fraction=1.0), ByStepConfig()],
)
def test_a_warmup_that_ends_within_the_run(schedule) -> None:
    assert mistakes(recipe(schedule=schedule)) == []


def test_a_batch_that_is_larger_than_the_data() -> None:
    given = Recipe(training=TrainingConfig(steps=20, global_batch_size=512, micro_batch_size=4))
    message = "a batch has 512 windows, but the data has only 120: each step repeats them 4.3 times"
    given = replace(given, schedule=CosineConfig(warmup_steps=2))
    (found,) = mistakes(given, 120)
    assert message in found and mistakes(given, 512) == []


@pytest.mark.parametrize(
    ("own", "theirs", "is_reported"),
    [(50257, 4096, True), (513, 512, True), (512, 500, False), (384, 300, False), (385, 300, True), (300, None, False)],
)
def test_a_vocabulary_that_is_larger_than_padding_explains(own, theirs, is_reported) -> None:
    note = find_unused_vocabulary(recipe(model=GPTConfig(vocab_size=own)), sources(theirs))
    assert (note is not None) is is_reported


def test_a_run_prints_both_at_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_tiny(tmp_path / "corpus")
    data = ("--data.train", str(tmp_path / "corpus"), "--data.synthetic=false", "--model.vocab-size=5000")
    words = (*data, "--schedule.warmup-steps=100", "--training.steps=4")
    message = "model.vocab_size is 5,000, but the vocabulary of the data has 300 tokens; to use that, pass "
    message += "`model.vocab_size='none'`"
    tiny_runs.run_tiny(tmp_path, *words)
    shown = capsys.readouterr().err
    assert message in shown and shown.count("schedule.warmup_steps is 100, but the run has 4 steps") == 1
    tiny_runs.run_tiny(tmp_path, *words, "--training.steps=5")
    shown = capsys.readouterr().err
    assert message not in shown, "there are weights now"
    assert "the run has 5 steps" in shown
    tiny_runs.run_tiny(tmp_path, *words, "--training.steps=5")
    assert "warmup" not in capsys.readouterr().err, "the run is finished"


@pytest.mark.parametrize(
    ("ends", "objective", "message"),
    [
        (("stored", "absent"), CausalLMConfig(), "the documents of b have no end-of-text tokens, unlike the others"),
        (("absent", "absent"), CausalLMConfig(), None),
        (("stored", "inserted"), CausalLMConfig(), None),
        (("stored", "absent"), MaskedLMConfig(), None),
    ],
)
def test_stores_that_differ_in_their_ends(ends, objective, message) -> None:
    stores = tuple(SimpleNamespace(end_of_text=end_of_text) for end_of_text in ends)
    given = Sources(train=stores)
    model = GPTConfig() if isinstance(objective, CausalLMConfig) else BertConfig()
    some = recipe(data=DataConfig(train=("a", "b")), model=model, objective=objective, schedule=CosineConfig())
    found = mistakes(some, stores=given)
    assert message in found[0] if found else message is None


MIB = 1 << 20


def needed_on_disk(
    monkeypatch: pytest.MonkeyPatch, output: Path, *, done: int = 0, held_out: bool = True, **keep
) -> int:
    """Return the checkpoints of 10 MiB for which `refuse_full_disk` asks before a run of 100 steps."""
    shard = Shard.whole(torch.empty(5 * MIB, dtype=torch.bfloat16, device="meta"))
    home = SimpleNamespace(tensors=lambda: {"model": {"weight": shard}})
    state = SimpleNamespace(home=home, progress=SimpleNamespace(step=done))
    samples = SimpleNamespace(held_out=object() if held_out else None)
    given = Recipe(
        model=GPTConfig(vocab_size=256), training=TrainingConfig(steps=100), checkpoint=CheckpointConfig(**keep)
    )
    for count in range(20):
        monkeypatch.setattr("hornbook.run.preflight.free_bytes", lambda path, count=count: (10 * count + 5) * MIB)
        try:
            refuse_full_disk(given, samples, state, output)
        except StorageError as error:
            assert f"{output} will need" in str(error) and "more, lower checkpoint.keep_last, or" in str(error)
        else:
            return count
    raise AssertionError("no disk is large enough")


def test_a_run_needs_the_space_of_what_it_keeps_and_of_one_more_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(**keep) -> int:
        return needed_on_disk(monkeypatch, tmp_path, **keep)

    assert needed(every_steps=10) == 4  # two, the best, and the one that is being written
    assert needed(every_steps=10, keep_last=5) == 7
    assert needed(every_steps=10, keep_best=False) == 3
    assert needed(every_steps=10, held_out=False) == 3  # none is the best
    assert needed(every_steps=10, held_out=False, keep_last=1) == 3  # the weights of the last may be damaged
    assert needed(every_steps=10, held_out=False, best_by="lambada/accuracy") == 4
    assert needed(every_steps=60) == 2  # after 60 steps, and at the end
    assert needed(every_steps=50) == 2
    assert needed(every_steps=1000) == 1
    for step in (10, 20, 30):
        (tmp_path / f"checkpoints/step-{step:08}").mkdir(parents=True)
    assert needed(every_steps=10, done=30) == 1
    assert needed(every_steps=10, done=30, keep_last=4) == 3
    assert needed(every_steps=10, done=95) == 1


def test_a_run_that_passes_the_check_saves_all_its_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def free(path: Path) -> int:
        return limit - sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())

    options = (
        "--training.steps=12",
        "--checkpoint.every-steps=2",
        "--checkpoint.keep-last=3",
        "--model.hidden-size=128",
    )
    for name in ("hornbook.run.preflight.free_bytes", "hornbook.storage.system.free_bytes"):
        monkeypatch.setattr(name, free)
    limit = 1 << 34
    tiny_runs.run_tiny(tmp_path, *options)
    saved = (tmp_path / "run/checkpoints").iterdir()
    size = max(sum(file.stat().st_size for file in path.iterdir()) for path in saved)
    shutil.rmtree(tmp_path / "run")
    limit = 4 * size
    with pytest.raises(StorageError, match=r"will need .* for up to 4 further checkpoints of 4.[0-9] MiB at a time"):
        tiny_runs.run_tiny(tmp_path, *options)
    assert not (tmp_path / "run/checkpoints").exists()
    limit = 4 * size + (3 << 20)
    tiny_runs.run_tiny(tmp_path, *options)
    assert len([*(tmp_path / "run/checkpoints").iterdir()]) == 3
