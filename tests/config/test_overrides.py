"""Overrides from Python: values of any type become options, or one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from hornbook.config import Recipe, load_recipe
from hornbook.config.overrides import override_leaves
from hornbook.errors import RecipeError

REST = {"data.synthetic": True, "model.vocab_size": 64}


def loaded(values: Any) -> Recipe:
    return load_recipe("demo", override_leaves(values) | override_leaves(REST)).recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([("training.steps", 3)], "got an array"),
        ("training.steps=3", "got a string"),
        (5, "got an integer"),
        (object(), "got an object"),
        ({3: 4}, "got the key 3"),
        ({None: 4}, "got the key none"),
        ({("training", "steps"): 3}, 'got the key ["training", "steps"]'),
        ({"training": {"steps": 3}}, 'got a dictionary under "training"'),
    ],
)
def test_what_is_no_dictionary_of_dotted_names(values: Any, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        override_leaves(values)
    expected = 'overrides: expected a dictionary of dotted names, such as {"training.steps": 300}, '
    assert caught.value.problems == [expected + message]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"training.steps": []}, 'expected an integer or "none", got an array'),
        ({"training.steps": [3]}, 'expected an integer or "none", got an array'),
        ({"training.steps": {3}}, 'expected an integer or "none", got a set'),
        ({"training.steps": object()}, 'expected an integer or "none", got an object'),
        ({"training.steps": numpy.array([3, 4])}, 'expected an integer or "none", got a ndarray'),
        ({"data.train": [object()]}, "expected an array of strings, got one with an object in it"),
        ({"model.family": object()}, "no such choice, expected one of"),
        ({"precision.compute": []}, 'expected one of "auto", "fp32", "bf16", "fp16", got an array'),
    ],
)
def test_values_of_a_wrong_type_are_one_line(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(values)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{next(iter(values))} = ") and "(overrides): " in problem and message in problem


def test_numbers_of_numpy_and_paths() -> None:
    found = loaded({"training.steps": numpy.int64(3), "optimizer.learning-rate": numpy.float32(0.5)})
    assert (found.training.steps, found.optimizer.learning_rate) == (3, 0.5)
    assert type(found.training.steps) is int and type(found.optimizer.learning_rate) is float
    (leaf,) = override_leaves({"data.train": [Path("a"), "b"]}).values()
    assert leaf.value == ["a", "b"]
