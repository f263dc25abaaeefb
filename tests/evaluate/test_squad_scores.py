"""SQuAD's own measures on examples whose values are known, and the choice of a span."""

import numpy as np
import pytest

from hornbook.evaluate.squad_scores import Found, _choose, best_span, exact_match, f1, normalized
from hornbook.samples.squad import Window


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


def window_of(context):
    """Each character of a text is a token, after a question of one."""
    size = len(context)
    offsets = np.stack([np.arange(size), np.arange(size) + 1], axis=1)
    return Window(0, None, 3, offsets, (0, 0))


def scores(size, begin, end):
    logits = np.zeros((size + 6, 2), dtype=np.float32)
    for column, peaks in enumerate((begin, end)):
        for place, value in peaks.items():
            logits[3 + place, column] = value
    return logits


@pytest.mark.parametrize(
    ("begin", "end", "most", "text", "score"),
    [
        ({2: 5.0}, {4: 5.0}, 30, "cde", 10.0),
        ({4: 5.0}, {2: 5.0}, 30, "abc", 5.0),
        ({0: 5.0}, {6: 5.0, 1: 3.0}, 3, "ab", 8.0),
        ({-3: 50.0, 6: 1.0}, {7: 50.0, 6: 1.0}, 30, "g", 2.0),
    ],
)
def test_the_best_span_begins_before_it_ends_and_lies_in_the_text(begin, end, most, text, score):
    found = best_span(scores(7, begin, end), window_of("abcdefg"), "abcdefg", most)
    assert (found.text, found.score) == (text, score)


def test_the_best_window_counts_and_no_answer_only_where_it_may_be():
    spans = [Found(3.0, "one", 9.0), Found(5.0, "two", 4.0)]
    assert _choose(spans, may_refuse=True) == "two"
    assert _choose([Found(3.0, "one", 9.0)], may_refuse=True) == ""
    assert _choose([Found(3.0, "one", 9.0)], may_refuse=False) == "one"
