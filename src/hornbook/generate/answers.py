"""Extract answers from texts: the best spans over all windows of a question.

    windows of a question -> logits of start and end -> the best spans over all windows -> "the white whale", 4-19

The score of a span is the sum of its two logits; a span starts and ends in the text and has a maximum length. If a
question may have no answer, [CLS] is scored in the same way, and the lowest score over the windows counts: if it is
higher than the best span's, there is no answer (a threshold of 0, SQuAD 2.0's default).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hornbook.config import SpanConfig
from hornbook.errors import HornbookError
from hornbook.generate.sequence_outputs import outputs_of
from hornbook.model import LanguageModel
from hornbook.model.label_heads import SpanHead
from hornbook.model.language_model import Forward, forward_resident
from hornbook.samples.squad import NO_ANSWER, Question, Window

_LOWEST = np.finfo(np.float32).min
"""The score of spans that would end beyond the text."""


@dataclass(frozen=True, kw_only=True)
class FoundAnswer:
    """An answer extracted from a text, or "no answer".

    Attributes:
        text: the answer without surrounding white space; empty for no answer.
        start: index in the text of its first character; None for no answer.
        end: index after its last character; None for no answer.
        score: sum of both logits.
    """

    text: str
    start: int | None
    end: int | None
    score: float

    def as_json(self) -> dict[str, Any]:
        """Return the fields, with the score rounded to six places."""
        fields = asdict(self)
        return {"answer": fields.pop("text"), **fields, "score": round(self.score, 6)}


def by_question(windows: Sequence[Window]) -> list[list[Window]]:
    """Group consecutive windows by question."""
    return [list(own) for _, own in groupby(windows, key=lambda window: window.question)]


def find_answers(
    model: LanguageModel,
    questions: Sequence[Question],
    windows: Sequence[Sequence[Window]],
    rules: SpanConfig,
    *,
    num_best: int = 1,
    batch_size: int,
    forward: Forward = forward_resident,
) -> list[list[FoundAnswer]]:
    """Return the answers to N questions, best first.

    Args:
        model: fine-tuned on spans.
        questions: questions to which the windows refer.
        windows: N groups of windows, see ``by_question``.
        rules: the most tokens of an answer, and whether there may be none.
        num_best: the most answers per question, including "no answer"; equal spans count once.
        batch_size: windows per batch.
        forward: runs the model on a batch.

    Raises:
        HornbookError: the model's logits are not finite.
    """
    sequences = [window.sequence for own in windows for window in own]
    logits = outputs_of(model, sequences, SpanHead.span_logits, batch_size=batch_size, forward=forward)
    if any(bool(row.isnan().any()) for row in logits):
        raise HornbookError("the model's logits are not finite; choose an earlier checkpoint, or compute in fp32")
    rows = iter(logits)
    return [
        _best_of([(window, next(rows).numpy()) for window in own], questions[own[0].question].context, rules, num_best)
        for own in windows
    ]


def best_spans(
    logits_T2: NDArray[np.float32], window: Window, context: str, max_tokens: int, num_best: int
) -> list[FoundAnswer]:
    """Return the best spans of 1 to ``max_tokens`` tokens in a window's text."""
    size = len(window.offsets)
    begin, end = logits_T2[window.first : window.first + size].T
    reach = min(max_tokens, size)
    ends = np.pad(end, (0, reach - 1), constant_values=-np.inf)
    scores = (begin[:, None] + np.lib.stride_tricks.sliding_window_view(ends, reach)).ravel()
    least = max(np.partition(scores, -num_best)[-num_best] if num_best < len(scores) else -np.inf, _LOWEST)
    candidates = np.flatnonzero(scores >= least)
    best = candidates[np.argsort(-scores[candidates], kind="stable")[:num_best]]
    found = []
    for place in best.tolist():
        first, more = divmod(place, reach)
        start = int(window.offsets[first, 0])
        raw = context[start : window.offsets[first + more, 1]]
        start, text = start + len(raw) - len(raw.lstrip()), raw.strip()
        found.append(FoundAnswer(text=text, start=start, end=start + len(text), score=float(scores[place])))
    return found


def _best_of(
    windows: Sequence[tuple[Window, NDArray[np.float32]]], context: str, rules: SpanConfig, num_best: int
) -> list[FoundAnswer]:
    """Return the best spans of all windows of a question; "no answer" ranks after a span of the same score."""
    best: dict[tuple[int | None, int | None], FoundAnswer] = {}
    for window, logits_T2 in windows:
        for found in best_spans(logits_T2, window, context, rules.max_answer_tokens, num_best):
            key = found.start, found.end
            if key not in best or found.score > best[key].score:
                best[key] = found
    answers = list(best.values())
    if rules.unanswerable:
        score = min(float(logits_T2[NO_ANSWER].sum()) for _, logits_T2 in windows)
        answers.append(FoundAnswer(text="", start=None, end=None, score=score))
    return sorted(answers, key=lambda found: -found.score)[:num_best]
