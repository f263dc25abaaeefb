"""A corpus of sentences, tokenizers as BERT's and RoBERTa's, what makes a tiny run one of an encoder; one untrained."""

import random
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import tiny_encoder, tiny_encoder_config

from hornbook.checkpoint import Contents
from hornbook.config import LabelledConfig, MaskedLMConfig, Recipe, TrainingConfig, recipe_to_dict
from hornbook.corpora.building.builder import BuildOptions, build_corpus
from hornbook.text.tokenizer import Tokenizer

FAMILIES = ("bert", "roberta", "groupbert")
LAYOUTS = ("padded", "packed", "unpadded")
_WORDS = ("the", "a", "cat", "dog", "mat", "river", "sees", "runs", "sat", "old", "red", "near", "on", "and")
_PARTS = ("wal", "tor", "min", "sha", "lek", "pud", "bri")
_NAMES = tuple(first + second + third for first in _PARTS for second in _PARTS for third in _PARTS)


def encoder(family: str) -> tuple[str, ...]:
    """What turns the recipe of `engine.tiny_runs` into one of an encoder, on random sequences."""
    objective = "mlm" if family == "roberta" else "mlm_nsp"
    sizes = ("--model.max-positions=32", "--objective.mask-probability=0.3")
    return (f"--model.family={family}", f"--objective.name={objective}", *sizes)


def on_corpus(corpus: Path) -> tuple[str, ...]:
    """What makes the run read a corpus."""
    return (f"--data.train={corpus}", "--data.synthetic=false", "--model.vocab-size=none")


@cache
def stories() -> tuple[str, ...]:
    """Documents of 2 to 7 sentences, one a line, of some frequent words and many rare ones."""
    draws = random.Random(5)

    def sentence() -> str:
        words = [draws.choice(_NAMES if draws.random() < 0.1 else _WORDS) for _ in range(draws.randint(2, 9))]
        return " ".join(words) + "."

    return tuple("\n".join(sentence() for _ in range(draws.randint(2, 7))) for _ in range(24))


@cache
def encoder_tokenizer(kind: str = "wordpiece") -> Tokenizer:
    """A tokenizer of the kind ``wordpiece``, for which rare words are several tokens, or ``roberta``."""
    return Tokenizer.train(stories(), 100 if kind == "wordpiece" else 300, kind=kind)


def build_sentences(folder: Path, *, sequences: str = "lines") -> Path:
    """Build a corpus of the stories' sentences, or documents; some are held out."""
    texts = folder.parent / f"{folder.name}-texts"
    texts.mkdir()
    for number, story in enumerate(stories()):
        (texts / f"{number:02}.txt").write_text(story)
    options = BuildOptions(validation=0.25, sequences=sequences)
    build_corpus([texts], encoder_tokenizer(), folder, options, lambda progress: None, lambda line: None)
    return folder


def encoder_contents(
    family: str = "bert",
    tokenizer: Tokenizer | None = None,
    objective: MaskedLMConfig | LabelledConfig | None = None,
    **changes: object,
) -> Contents:
    """A checkpoint of a random encoder, untrained, with a tokenizer of its kind; by default for masked tokens."""
    tokenizer = tokenizer or encoder_tokenizer("roberta" if family == "roberta" else "wordpiece")
    sizes = {"vocab_size": tokenizer.vocab_size, "max_positions": 64, **changes}
    model, config = tiny_encoder(family, **sizes), tiny_encoder_config(family, **sizes)
    objective = objective or MaskedLMConfig()
    recipe = Recipe(name="tiny", model=config, objective=objective, training=TrainingConfig(steps=1))
    weights = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    files = {"tokenizer.json": tokenizer.to_json().encode()}
    return Contents(step=1, tensors={"model": weights}, documents={"recipe": recipe_to_dict(recipe)}, files=files)


def assert_same_rows(
    rows: Sequence[Mapping[str, Any]],
    others: Sequence[Mapping[str, Any]],
    tolerance: float,
    *,
    but: Collection[str] = (),
) -> None:
    """Two logs say the same, numbers up to a relative tolerance, some columns apart."""
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        for key in row.keys() - set(but):
            # a standard error is a difference of losses, which are equal up to the tolerance
            absolute = tolerance * row["loss"] if key == "standard_error" and row[key] is not None else 0.0
            is_number = isinstance(row[key], float)
            expected = pytest.approx(row[key], rel=tolerance, abs=absolute) if is_number else row[key]
            assert other[key] == expected, (key, row["step"])
