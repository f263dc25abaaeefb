"""The law of scaling against the runs that it was fitted to, and what the dials accept."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hornbook.config import load_recipe
from hornbook.errors import UserError
from hornbook.plan.dial import (
    CORPUS_ERROR,
    LAW,
    MOST_EPOCHS,
    Corpus,
    Dial,
    best_tokens,
    choose,
    interval,
    num_weights,
    options_of,
    read_time,
)
from hornbook.plan.scaling_resamples import RESAMPLES
from scaling_fit import TEXTS, text_lines

RUNS = json.loads((Path(__file__).parents[2] / "benchmarks" / "scaling_runs.json").read_text())
FITTED = {"books": (0.9309, 1.2121), "owt": (0.8275, 1.5175), "py": (1.2982, 0.0647)}
"""Scale and floor that ``benchmarks/scaling_fit.py`` prints."""
TEXT_RUNS = json.loads((Path(__file__).parents[2] / "benchmarks" / "text_runs.json").read_text())
PREDICTED = TEXT_RUNS + [run for run in RUNS if run["corpus"] == "books"]


def test_the_law_has_the_losses_of_the_runs() -> None:
    errors = []
    for run in RUNS:
        scale, floor = FITTED[run["corpus"]]
        loss = scale * (floor + LAW.loss(run["depth"], run["tokens"], run["unique_tokens"]))
        errors.append(loss / run["bits_per_byte"] - 1)
    assert len(errors) == 51
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.0068
    assert max(map(abs, errors)) < 0.022


def test_no_other_constants_of_the_law_fit_better() -> None:
    def error(**changed: float) -> float:
        values = {
            name: getattr(LAW, name) for name in ("size", "alpha", "data", "beta", "repeats", "largest", "longest")
        }
        law, total = type(LAW)(**values | changed), 0.0
        for run in RUNS:
            scale, floor = FITTED[run["corpus"]]
            loss = scale * (floor + law.loss(run["depth"], run["tokens"], run["unique_tokens"]))
            gap = abs(math.log(loss / run["bits_per_byte"]))
            total += 0.5 * gap**2 if gap < 1e-3 else 1e-3 * (gap - 5e-4)
        return total

    for name in ("size", "alpha", "data", "beta"):
        for factor in (0.99, 1.01):
            assert error(**{name: getattr(LAW, name) * factor}) > error(), (name, factor)


def test_level_and_slope_are_the_fit_to_the_measured_texts() -> None:
    for size, alpha, data, beta, repeats, *kept in (RESAMPLES[0], RESAMPLES[-1]):
        law = replace(LAW, size=size, alpha=alpha, data=data, beta=beta, repeats=repeats)
        level, slope = text_lines(law, PREDICTED)
        assert [*level, *slope] == pytest.approx(kept, rel=2e-3)
    level, slope = text_lines(LAW, PREDICTED)
    fitted, given = Corpus.of(TEXTS["linux"], level, slope), Corpus.of(TEXTS["linux"])
    assert (fitted.floor, fitted.scale) == pytest.approx((given.floor, given.scale), rel=1e-3)


def test_each_text_is_predicted_from_the_others() -> None:
    means = []
    for name, text in TEXTS.items():
        corpus = Corpus.of(text, *text_lines(LAW, [run for run in PREDICTED if run["corpus"] != name]))
        own = [run for run in PREDICTED if run["corpus"] == name]
        losses = [LAW.loss(run["depth"], run["tokens"], run["unique_tokens"]) for run in own]
        ratios = [
            (corpus.floor + corpus.scale * loss) / run["bits_per_byte"] for loss, run in zip(losses, own, strict=True)
        ]
        means.append(sum(ratios) / len(ratios) - 1)
    rms = math.sqrt(sum(mean**2 for mean in means) / len(means))
    assert rms == pytest.approx(0.039, abs=5e-4)
    assert pytest.approx(1.44 * rms, abs=1e-3) == CORPUS_ERROR  # Student's 80 % for six


def test_two_measures_of_a_text_predict_its_losses() -> None:
    for run in PREDICTED:
        corpus = Corpus.of(TEXTS[run["corpus"]])
        loss = corpus.floor + corpus.scale * LAW.loss(run["depth"], run["tokens"], run["unique_tokens"])
        assert loss == pytest.approx(run["bits_per_byte"], rel=CORPUS_ERROR)


def test_more_time_chooses_a_larger_model_for_more_tokens() -> None:
    chosen = [
        choose(seconds, math.inf, lambda depth: 1e-6 * depth**2, range(1, 40))[0] for seconds in (20, 3600, 86400)
    ]
    assert [choice.depth for choice in chosen] == sorted({choice.depth for choice in chosen})
    assert [choice.tokens for choice in chosen] == sorted(choice.tokens for choice in chosen)
    assert chosen[-1].extrapolates
    assert not choose(5, math.inf, lambda depth: 1e-6 * depth**2, range(1, 3))[0].extrapolates


def test_a_small_corpus_is_not_repeated_beyond_what_was_measured() -> None:
    best = choose(1e5, 100_000, lambda depth: 1e-5 * depth, range(1, 10))[0]
    assert best.epochs == MOST_EPOCHS
    assert num_weights(best.depth) <= MOST_EPOCHS * 100_000  # though the law alone prefers depth 9


def test_more_epochs_than_the_most_made_no_measured_run_of_depth_2_better() -> None:
    for corpus, depth in {(run["corpus"], run["depth"]) for run in RUNS if run["depth"] >= 2}:
        own = [run for run in RUNS if (run["corpus"], run["depth"]) == (corpus, depth)]
        few = [run["bits_per_byte"] for run in own if run["tokens"] <= MOST_EPOCHS * run["unique_tokens"]]
        many = [run["bits_per_byte"] for run in own if run["tokens"] > MOST_EPOCHS * run["unique_tokens"]]
        assert not many or min(few) < min(many), (corpus, depth)


def test_the_interval_holds_the_runs() -> None:
    for run in PREDICTED:
        text = TEXTS[run["corpus"]]
        corpus, point = Corpus.of(text), (run["depth"], run["tokens"], run["unique_tokens"])
        loss = corpus.floor + corpus.scale * LAW.loss(*point)
        low, high = interval(*point, text, loss)
        assert low < run["bits_per_byte"] < high
        assert (high - low) / loss < 0.16


def test_the_interval_grows_beyond_the_measured_runs() -> None:
    def width(depth: int, tokens: float) -> float:
        corpus = Corpus.of(TEXTS["books"])
        loss = corpus.floor + corpus.scale * LAW.loss(depth, tokens, math.inf)
        low, high = interval(depth, tokens, math.inf, TEXTS["books"], loss)
        return (high - low) / loss

    assert width(2, 2e6) < 0.12
    assert width(13, 1.8e11) > 0.14


def test_best_tokens_balance_size_and_length() -> None:
    tokens = best_tokens(4)
    weights, step = 12 * 256**2 * 4, 0.01
    by_size = LAW.size * weights**-LAW.alpha * LAW.alpha * step
    by_length = LAW.data * tokens**-LAW.beta * LAW.beta * step
    assert by_size == pytest.approx(by_length, rel=1e-3)


def test_the_options_are_a_recipe_that_trains_on_the_tokens() -> None:
    options = options_of(3, 1 << 21)
    words = [f"--{name}={value}" for name, value in options.items()]
    recipe = load_recipe("decoder-demo", words, require_data=False).recipe
    assert recipe.training.steps * recipe.training.global_batch_size * recipe.sequence_length == 1 << 21
    assert recipe.model.hidden_size == 192
    assert options_of(13, 10**11)["optimizer.learning_rate"] <= 0.04  # of a batch larger than any measured one


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("1.5h", 5400), ("1h30m", 5400), ("90s", 90), ("2d", 172_800)]
)
def test_times(text: str, seconds: float) -> None:
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["0m", "-5m", "30", "m", "3 weeks", "", "999999d", "30m x", "nan"])
def test_no_times(text: str) -> None:
    with pytest.raises(UserError, match=r"`time` is .*: expected"):
        read_time(text)


@pytest.mark.parametrize(
    ("given", "value"),
    [({"params": "30M"}, 3e7), ({"tokens": 100_000}, 1e5), ({"flops": "1e15"}, 1e15), ({"memory": "2GiB"}, 2**31)],
)
def test_dials(given: dict[str, object], value: float) -> None:
    assert Dial.of({"time": None, **given}).value == value


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "got none"),
        ({"time": "5m", "params": "3M"}, "got `time` and `params`"),
        ({"params": "0"}, "`params` is '0': expected a number from 1"),
        ({"tokens": "-3"}, "`tokens` is '-3': expected a number such as"),
        ({"tokens": "1,5M"}, "`tokens` is '1,5M': expected a number such as"),
        ({"flops": "1e99"}, "from 1 to 1e"),
        ({"memory": "8"}, "such as 8GB"),
    ],
)
def test_no_dials(given: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Dial.of(given)
