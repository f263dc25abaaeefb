"""Exact match and F1 of extracted answers by the rules of SQuAD's own script (Rajpurkar et al. 2016, 2018).

    predicted answer           "The  White Whale!"   normalized: lower case, without punctuation, without a, an, the
    an expected answer         "white whale"         and with single blanks   -> exact match 1, F1 1

`hornbook.generate.answers` extracts the answers.
"""

import re
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from hornbook.config import SpanConfig
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.generate.answers import by_question, find_answers
from hornbook.samples.batches import spread_evenly
from hornbook.samples.squad import Question, Window, make_windows, read_questions
from hornbook.wording import counted

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_PUBLISHED: Final = "SQuAD's evaluate-v2.0.py, whose numbers are in percent"


def normalized(text: str) -> str:
    """Return an answer normalized for comparison: ``The  White Whale!`` is ``white whale``."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answer: str) -> float:
    """Return 1 if both are equal after normalization, else 0."""
    return float(normalized(predicted) == normalized(answer))


def f1(predicted: str, answer: str) -> float:
    """Return the F1 of the normalized words; if either has no words, 1 if both have none, else 0."""
    words, right = normalized(predicted).split(), normalized(answer).split()
    if not words or not right:
        return float(words == right)
    num_common = (Counter(words) & Counter(right)).total()
    return 2 * num_common / (len(words) + len(right))


def read(given: TaskInput) -> tuple[list[Question], list[Window], SpanConfig]:
    """Return the questions of the task's file, or of the run's validation file, their windows, and the answers' rules.

    "No answer" is allowed if the model was trained with it, or if some question of the file has no answer.

    Raises:
        UserError, DataError: the model does not extract spans, no file is named or known, or it is malformed.
    """
    objective = given.require_objective(SpanConfig, "cannot extract answers")
    everything = read_questions(given.labelled_data(), unanswerable=True)
    may_refuse = objective.unanswerable or not all(question.answers for question in everything)
    questions = [everything[number] for number in spread_evenly(len(everything), given.max_sequences).tolist()]
    windows = make_windows(questions, given.require_tokenizer(), objective, given.window_length)
    return questions, windows, replace(objective, unanswerable=may_refuse)


def span(given: TaskInput) -> list[Row]:
    """Score the model's answers to the questions of a file in SQuAD's format.

    Raises:
        UserError, DataError: see `read`.
    """
    questions, windows, rules = read(given)
    answers = find_answers(
        given.loaded.model,
        questions,
        by_question(windows),
        rules,
        batch_size=given.micro_batch_size,
        forward=given.forward,
    )
    pairs = [(best.text, question) for (best,), question in zip(answers, questions, strict=True)]
    exact, overlap = (float(np.mean([_best(measure, *pair) for pair in pairs])) for measure in (exact_match, f1))
    num_unanswerable = sum(not question.answers for question in questions)
    shared = (
        f"{counted(len(questions), 'question')}, {num_unanswerable:,} without an answer, "
        f"in {counted(len(windows), 'window')} of {given.window_length} tokens"
    )
    return [
        Row(
            metric="exact_match",
            value=exact,
            convention=f"share of questions whose answer is one of those given, normalized; {shared}",
            comparable_with=_PUBLISHED,
        ),
        Row(
            metric="f1",
            value=overlap,
            convention="mean over questions of the words' F1 with the nearest answer given, normalized",
            comparable_with=_PUBLISHED,
        ),
    ]


def _best(measure: Callable[[str, str], float], predicted: str, question: Question) -> float:
    """Return the best score over the expected answers; if there are none, no answer is correct."""
    right = [answer.text for answer in question.answers if normalized(answer.text)] or [""]
    return max(measure(predicted, text) for text in right)
