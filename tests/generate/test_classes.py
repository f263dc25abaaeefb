"""Probabilities of classes: those of a softmax, best first, of equals the first."""

import pytest
import torch

from hornbook.errors import HornbookError
from hornbook.generate.classes import most_likely

LABELS = ("bad", "so so", "good")


def test_the_most_likely_classes():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 3.0]])
    first, second = most_likely(logits, LABELS)
    assert list(first.probabilities) == ["so so", "good", "bad"]
    expected = logits[0].softmax(0)[[1, 2, 0]].tolist()
    assert list(first.probabilities.values()) == pytest.approx(expected)
    assert second.as_json() == {
        "label": "bad",
        "probability": 0.333333,
        "probabilities": {"bad": 0.333333, "so so": 0.333333, "good": 0.333333},
    }
    assert [list(each.probabilities) for each in most_likely(logits, LABELS, 2)] == [
        ["so so", "good"],
        ["bad", "so so"],
    ]


def test_logits_that_are_not_finite_are_reported():
    with pytest.raises(HornbookError, match="not finite"):
        most_likely(torch.tensor([[0.0, torch.nan, 1.0]]), LABELS)
