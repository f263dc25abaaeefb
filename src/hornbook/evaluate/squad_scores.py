"""Answers out of texts: exact match and F1 by the rules of SQuAD's own script (Rajpurkar et al. 2016, 2018).

    windows of a question -> logits of beginning and end -> the best span over all windows -> "the white whale"
    normalized: lower case, without punctuation, without a, an, the, single blanks         -> "white whale"

The score of a span is the sum of its two logits; a span begins and ends in the text and has at most so many tokens.
Where some question has no answer, [CLS] has the same sum, and the lowest over the windows counts; no answer is given
where it is higher than the best span's (a threshold of 0, SQuAD 2.0's default).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hornbook.config import SpanConfig
from hornbook.evaluate.labelled_scores import data_of, laid_out, objective_of
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.model.label_heads import SpanHead
from hornbook.samples.batches import spread_evenly
from hornbook.samples.squad import NO_ANSWER, Question, Window, make_windows, read_questions
from hornbook.wording import counted

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_PUBLISHED: Final = "SQuAD's evaluate-v2.0.py, whose numbers are in percent"


class Found(NamedTuple):
    """The best span of a window, and the score of no answer."""

    score: float
    text: str
    no_answer: float


def normalized(text: str) -> str:
    """Return an answer as SQuAD compares it: ``The  White Whale!`` is ``white whale``."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answer: str) -> float:
    """Return 1 if both are the same once normalized, else 0."""
    return float(normalized(predicted) == normalized(answer))


def f1(predicted: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall of normalized words; without words, whether both have none."""
    words, right = normalized(predicted).split(), normalized(answer).split()
    if not words or not right:
        return float(words == right)
    num_common = (Counter(words) & Counter(right)).total()
    return 2 * num_common / (len(words) + len(right))


def read(given: TaskInput) -> tuple[list[Question], list[Window], SpanConfig]:
    """Return the questions of the task's file, or of the run's validation file, their windows, and how to answer.

    No answer may be given if the model has learned to, or if some question of the file has none.

    Raises:
        UserError, DataError: the model finds no spans, no file is named or known, or it is malformed.
    """
    objective = objective_of(given, SpanConfig, "finds no answers")
    everything = read_questions(data_of(given), unanswerable=True)
    may_refuse = objective.unanswerable or not all(question.answers for question in everything)
    questions = [everything[number] for number in spread_evenly(len(everything), given.max_sequences).tolist()]
    windows = make_windows(questions, given.require_tokenizer(), objective, given.window_length)
    return questions, windows, replace(objective, unanswerable=may_refuse)


def span(given: TaskInput) -> list[Row]:
    """Answer the questions of a file in SQuAD's format and compare.

    Raises:
        UserError, DataError: as `read`.
    """
    questions, windows, rules = read(given)
    answers = answer(given, questions, windows, rules)
    exact, overlap = (
        float(np.mean([_best(measure, answers[number], question) for number, question in enumerate(questions)]))
        for measure in (exact_match, f1)
    )
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


def answer(
    given: TaskInput, questions: Sequence[Question], windows: Sequence[Window], rules: SpanConfig
) -> Mapping[int, str]:
    """Return the model's answer to each question, by its number; empty for none."""
    model, found = given.loaded.model, dict[int, list[Found]]()
    place = iter(windows)
    for batch in laid_out(given, [window.sequence for window in windows]):
        for logits in given.forward(model, batch, SpanHead.span_logits).cpu().numpy():
            window = next(place)
            context = questions[window.question].context
            found.setdefault(window.question, []).append(best_span(logits, window, context, rules.max_answer_tokens))
    return {number: _choose(spans, may_refuse=rules.unanswerable) for number, spans in found.items()}


def best_span(logits_T2: NDArray[np.float32], window: Window, context: str, max_tokens: int) -> Found:
    """Return the best span of a window's text: it ends where it begins, or up to ``max_tokens - 1`` tokens later."""
    size = len(window.offsets)
    begin, end = logits_T2[window.first : window.first + size].T
    reach = min(max_tokens, size)
    ends = np.pad(end, (0, reach - 1), constant_values=-np.inf)
    scores = begin[:, None] + np.lib.stride_tricks.sliding_window_view(ends, reach)
    first, more = divmod(int(scores.argmax()), reach)
    text = context[window.offsets[first, 0] : window.offsets[first + more, 1]].strip()
    return Found(float(scores[first, more]), text, float(logits_T2[NO_ANSWER].sum()))


def _choose(spans: Sequence[Found], *, may_refuse: bool) -> str:
    best = max(spans, key=lambda found: found.score)
    no_answer = min(found.no_answer for found in spans)
    return "" if may_refuse and no_answer > best.score else best.text


def _best(measure: Callable[[str, str], float], predicted: str, question: Question) -> float:
    """Compare with the answer that is nearest; where there is none, the right answer is none."""
    right = [answer.text for answer in question.answers if normalized(answer.text)] or [""]
    return max(measure(predicted, text) for text in right)
