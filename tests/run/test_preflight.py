"""Warnings before the first step: lengths, sizes and ends of texts that look like mistakes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_runs
from tiny_text import build_tiny

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
from hornbook.run.preflight import find_mistakes, find_unused_vocabulary
from hornbook.samples.sources import Sources


def recipe(**sections) -> Recipe:
    return Recipe(training=TrainingConfig(steps=20), **sections)


def sources(vocab_size: int | None) -> Sources:
    class Store:
        pass

    store = Store()
    store.end_of_text = "stored"
    store.vocab_size = vocab_size
    return Sources(train=(store,), weights=(), validation=None, tokenizer=None, num_validation_bytes=None)


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
    given = Sources(train=stores, weights=(), validation=None, tokenizer=None, num_validation_bytes=None)
    model = GPTConfig() if isinstance(objective, CausalLMConfig) else BertConfig()
    some = recipe(data=DataConfig(train=("a", "b")), model=model, objective=objective, schedule=CosineConfig())
    found = mistakes(some, stores=given)
    assert message in found[0] if found else message is None
