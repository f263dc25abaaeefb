"""Questions of SQuAD's JSON and the windows of their texts."""

import json

import numpy as np
import pytest
from tiny_labelled import CONTEXT, QUESTIONS, question, word_pieces, write_jsonl, write_squad
from tiny_text import one_line

from hornbook.config import SpanConfig
from hornbook.errors import DataError, UserError
from hornbook.samples.squad import labelled_windows, make_windows, read_questions, read_unanswered
from hornbook.text.tokenizer import Tokenizer


def windows_of(tmp_path, *, length=64, tokenizer=None, **rules):
    questions = read_questions(write_squad(tmp_path / "x.json", QUESTIONS), unanswerable=False)
    return questions, make_windows(questions, tokenizer or word_pieces(), SpanConfig(**rules), length)


def roberta():
    return Tokenizer.train([CONTEXT] * 9, 290, kind="roberta")


@pytest.mark.parametrize("tokenizer", [word_pieces, roberta])
def test_the_span_of_a_window_is_the_answer(tmp_path, tokenizer):
    questions, windows = windows_of(tmp_path, length=128, tokenizer=tokenizer(), max_question_tokens=40)
    assert [window.question for window in windows] == [0, 1, 2]
    for window, asked in zip(windows, questions, strict=True):
        start, end = (place - window.first for place in window.span)
        assert CONTEXT[window.offsets[start, 0] : window.offsets[end, 1]].strip() == asked.answers[0].text
        assert window.sequence.segments[window.first - 1 : window.first + 1].tolist() == [0, 1]


@pytest.mark.parametrize("stride", [1, 4, 9, 100])
def test_windows_begin_a_stride_apart_and_cover_the_text(tmp_path, stride):
    """Of 25 tokens 4 are the question's and 3 special, so 18 are the text's."""
    _, windows = windows_of(tmp_path, length=25, document_stride=stride, max_question_tokens=4)
    tokens, step = word_pieces().encode(CONTEXT), min(stride, 18)
    found = [window.sequence.tokens[window.first : -1].tolist() for window in windows if window.question == 0]
    assert found == [tokens[step * number : step * number + 18] for number in range(len(found))]
    assert step * len(found) + 18 > len(tokens) > step * (len(found) - 2) + 18, "to the end, and no window too many"


def test_a_window_without_the_whole_answer_points_at_the_beginning(tmp_path):
    _, windows = windows_of(tmp_path, length=17, document_stride=6, max_question_tokens=4)
    spans = [window.span for window in windows if window.question == 2]
    assert (0, 0) in spans and any(span != (0, 0) for span in spans)


def test_arrays_for_the_training(tmp_path):
    questions, windows = windows_of(tmp_path, length=128)
    sequences, labels = labelled_windows(questions, word_pieces(), SpanConfig(), 128)
    assert labels.tolist() == [list(window.span) for window in windows]
    assert all(
        np.array_equal(one.tokens, window.sequence.tokens) for one, window in zip(sequences, windows, strict=True)
    )


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (question(0, "Who?", ("Ahab", 3)), ["'q0'", "answer 'Ahab' is not at character 3"]),
        (question(0, "Who?", ("Ahab", -5)), ["is not at character -5"]),
        (question(0, "Who?", ("Ahab", "3")), ["is not at character"]),
        (question(0, " ", ("The", 0)), ["question, context or answer is not a text"]),
        (question(0, "Who \ud800?", ("The", 0)), ["'q0'", "character 4 of the text 'Who", "half a surrogate pair"]),
        (question(0, "Who?", ("The", 0), id="\udc00"), ["character 0 of the id is half a surrogate pair"]),
        (question(0, "Who?"), ["it has no answer", "`objective.unanswerable`"]),
        (question(0, "Who?", ("The", 0), is_impossible=True), ["it has no answer"]),
        ({"id": 1, "question": "Who?"}, ["not SQuAD's JSON (no 'answers')"]),
        ({"id": 1, "question": "Who?", "answers": 3}, ["not SQuAD's JSON (a value of the wrong type)"]),
    ],
)
def test_mistakes_are_reported(tmp_path, asked, parts):
    with pytest.raises(DataError) as caught:
        read_questions(write_squad(tmp_path / "x.json", [asked]), unanswerable=False)
    assert one_line(caught.value, "x.json", *parts)


def test_half_a_surrogate_pair_in_a_text_is_reported_with_its_question(tmp_path):
    path = write_squad(tmp_path / "x.json", [question(0, "Who?", ("The", 0))], context="The \ud800")
    with pytest.raises(DataError, match=r"question 'q0': character 4 of the text"):
        read_questions(path, unanswerable=False)


@pytest.mark.parametrize("document", [[], {}, {"data": 3}, {"data": []}, {"data": [{"paragraphs": []}]}])
def test_another_document_is_refused(tmp_path, document):
    (tmp_path / "x.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="SQuAD's JSON"):
        read_questions(str(tmp_path / "x.json"), unanswerable=True)


def test_questions_without_answer_are_read_where_they_may_be(tmp_path):
    asked = [question(0, "Who?", ("The", 0), is_impossible=True), question(1, "What?")]
    questions = read_questions(write_squad(tmp_path / "x.json", asked), unanswerable=True)
    assert [asked.answers for asked in questions] == [(), ()]
    _, labels = labelled_windows(questions, word_pieces(), SpanConfig(), 128)
    assert labels.tolist() == [[0, 0], [0, 0]]


def test_no_space_for_the_text(tmp_path):
    with pytest.raises(UserError, match="sequences of 60 tokens have no room for questions of 64 and a text"):
        windows_of(tmp_path, length=60)


def test_questions_without_answers(tmp_path):
    asked = [question(0, "Who?", ("nowhere", 3)), {"id": "q1", "question": "What?"}]
    found = read_unanswered(write_squad(tmp_path / "x.json", asked), by_line=False)
    assert [(each.id, each.question, each.answers) for each in found] == [("q0", "Who?", ()), ("q1", "What?", ())]
    lines = [{"question": "Who?", "context": CONTEXT}, {"question": "What?", "context": CONTEXT, "id": "w"}]
    by_line = read_unanswered(write_jsonl(tmp_path / "x.jsonl", lines), by_line=True)
    assert [(each.id, each.question, each.context) for each in by_line] == [
        ("1", "Who?", CONTEXT),
        ("w", "What?", CONTEXT),
    ]


@pytest.mark.parametrize(
    ("text", "by_line", "parts"),
    [
        ('{"question": "a"}', True, ["line 1", "no field 'context'"]),
        (
            '{"question": "a", "context": "b"}\n{"question": " ", "context": "b"}',
            True,
            ["line 2", "'question' has no text"],
        ),
        ('{"question": "a \\ud800", "context": "b"}', True, ["line 1", "half a surrogate pair"]),
        ("", True, ["the file has no questions"]),
        ('{"data": []}', False, ["the file has no questions"]),
        (
            '{"data": [{"paragraphs": [{"context": "b", "qas": [{"id": "q"}]}]}]}',
            False,
            ["no 'question'", "id and question"],
        ),
    ],
)
def test_a_question_that_cannot_be_read_is_reported_with_its_line(tmp_path, text, by_line, parts):
    (tmp_path / "x").write_text(text)
    with pytest.raises(DataError) as caught:
        read_unanswered(str(tmp_path / "x"), by_line=by_line)
    assert one_line(caught.value, str(tmp_path / "x"), *parts)
