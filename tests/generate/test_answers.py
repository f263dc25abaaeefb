"""Answers are the best spans over all windows: inside the text, in order of their scores, at their characters."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_encoder
from tiny_labelled import QUESTIONS, word_pieces, write_squad

from hornbook.config import SpanConfig
from hornbook.errors import HornbookError
from hornbook.generate.answers import _best_of, best_spans, by_question, find_answers
from hornbook.samples.squad import Window, make_windows, read_questions


def window_of(context, start=0):
    """Each character of a text, from ``start`` on, is a token, after a question of one."""
    places = np.arange(start, len(context))
    return Window(0, None, 3, np.stack([places, places + 1], axis=1), (0, 0))


def scores(size, begin, end, none=0.0):
    """Logits of 0 but for some places; ``none`` is the sum of those of [CLS]."""
    logits = np.zeros((size + 6, 2), dtype=np.float32)
    for column, peaks in enumerate((begin, end)):
        for place, value in peaks.items():
            logits[3 + place, column] = value
    logits[0] = none / 2
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
def test_the_best_span_begins_before_it_ends_and_is_within_the_text(begin, end, most, text, score):
    (found,) = best_spans(scores(7, begin, end), window_of("abcdefg"), "abcdefg", most, 1)
    assert (found.text, found.score) == (text, score)
    assert "abcdefg"[found.start : found.end] == text


@pytest.mark.parametrize("most", [1, 3, 30])
def test_the_best_spans_are_the_first_of_all(most):
    context, logits = "abcdefg", np.random.default_rng(0).normal(size=(13, 2)).astype(np.float32)
    every = {
        (first, last + 1): float(logits[3 + first, 0] + logits[3 + last, 1])
        for first, last in combinations_with_replacement(range(7), 2)
        if last - first < most
    }
    expected = sorted(every, key=lambda span: -every[span])
    for count in (1, 4, 100):
        found = best_spans(logits, window_of(context), context, most, count)
        assert [(each.start, each.end) for each in found] == expected[:count]
        assert [each.score for each in found] == pytest.approx([every[span] for span in expected[:count]])


def test_white_space_around_a_span_is_no_part_of_it():
    (found,) = best_spans(scores(5, {0: 9.0}, {4: 9.0}), window_of(" a b "), " a b ", 30, 1)
    assert (found.text, found.start, found.end) == ("a b", 1, 4)


def test_the_best_window_counts_and_no_answer_only_where_it_may_be():
    context = "abcdefg"
    first = (window_of(context), scores(7, {0: 2.0}, {0: 1.0}, none=9.0))
    second = (window_of(context, 3), scores(4, {0: 3.0}, {1: 2.0}, none=4.0))
    best = {
        refuses: [found.text for found in _best_of([first, second], context, SpanConfig(unanswerable=refuses), 2)]
        for refuses in (False, True)
    }
    assert best == {False: ["de", "a"], True: ["de", ""]}, "the lower of 9 and 4 counts"
    (alone,) = _best_of([first], context, SpanConfig(unanswerable=True), 1)
    assert (alone.text, alone.start, alone.end, alone.score) == ("", None, None, 9.0)


def test_a_span_of_two_windows_counts_once_with_its_better_score():
    context = "abcdefg"
    windows = [
        (window_of(context), scores(7, {4: 3.0}, {4: 1.0})),
        (window_of(context, 3), scores(4, {1: 5.0}, {1: 1.0})),
    ]
    found = _best_of(windows, context, SpanConfig(), 10)
    spans = [(each.start, each.end) for each in found]
    assert spans[0] == (4, 5) and found[0].score == 6.0 and len(set(spans)) == len(spans) == 10


def test_questions_are_answered_in_their_order_whatever_the_batch(tmp_path):
    tokenizer, rules = word_pieces(), SpanConfig(max_question_tokens=8, document_stride=4)
    questions = read_questions(write_squad(tmp_path / "x.json", QUESTIONS), unanswerable=False)
    windows = by_question(make_windows(questions, tokenizer, rules, 24))
    assert [len(own) > 1 for own in windows] == [True] * 3
    model = tiny_encoder(head="span", vocab_size=tokenizer.vocab_size)
    each = [find_answers(model, questions, [own], rules, num_best=3, batch_size=1)[0] for own in windows]
    together = find_answers(model, questions, windows, rules, num_best=3, batch_size=16)
    for alone, found in zip(each, together, strict=True):
        assert [(one.start, one.end) for one in alone] == [(one.start, one.end) for one in found]
        assert [one.score for one in alone] == pytest.approx([one.score for one in found], abs=1e-5)
        assert all(questions[0].context[one.start : one.end] == one.text for one in found)
    with torch.no_grad():
        model.embedding.positions[0] = torch.nan
    with pytest.raises(HornbookError, match="not finite"):
        find_answers(model, questions, windows, rules, batch_size=16)
