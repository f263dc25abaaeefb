"""SQuAD's own measures on examples whose values are known."""

import pytest

from hornbook.evaluate.squad_scores import exact_match, f1, normalized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  White Whale!", "white whale"),
        ("an  apple a day", "apple day"),
        ("U.S. Route 1", "us route 1"),
        ("Theatre, a-b", "theatre ab"),
        ("The", ""),
        ("“quoted”", "“quoted”"),
    ],
)
def test_normalized(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("predicted", "answer", "exact", "overlap"),
    [
        ("Denver Broncos", "The Denver Broncos!", 1, 1),
        ("Denver", "Denver Broncos", 0, 2 / 3),
        ("the the Broncos of Denver", "Denver Broncos", 0, 0.8),
        ("gold", "Denver Broncos", 0, 0),
        ("to be or not to be", "to be", 0, 2 * (2 / 6) / (2 / 6 + 1)),
        ("to", "to to to", 0, 0.5),
        ("", "", 1, 1),
        ("", "Denver", 0, 0),
        ("the", "", 1, 1),
    ],
)
def test_exact_match_and_f1(predicted, answer, exact, overlap):
    assert exact_match(predicted, answer) == exact
    assert f1(predicted, answer) == pytest.approx(overlap)
