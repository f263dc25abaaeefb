"""Read questions about texts in SQuAD's format (Rajpurkar et al. 2016, 2018), and make windows of the texts.

    {"data": [{"paragraphs": [{"context": "...", "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}

    context  c c c c c c c c c c      room for 6 tokens, stride 3
    windows  [CLS] q q [SEP] c c c c c c [SEP]
             [CLS] q q [SEP]       c c c c c c [SEP]
             [CLS] q q [SEP]             c c c c [SEP]          the answer's span in each; 0 if it is not whole

As in Google's run_squad, the stride counts from start to start, and a window without the answer points at [CLS].
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hornbook.arrays import Int64s
from hornbook.config import SpanConfig
from hornbook.errors import DataError, UserError
from hornbook.samples.labelled_texts import LARGEST_FILE, frame, num_special, read_whole
from hornbook.samples.sequences import TokenSequence
from hornbook.storage.json_files import load_strictly
from hornbook.text.readers.jsonl import read_objects, text_in, utf8_of
from hornbook.text.tokenizer import Tokenizer

NO_ANSWER = 0
"""The position of [CLS], the label of windows without the answer."""


class Answer(NamedTuple):
    """A part of a text: its characters and the index of the first."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a text; without answers if the text does not answer it."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    place: str
    """File and id, for errors."""


class Window(NamedTuple):
    """A question with a part of its context.

    Attributes:
        question: index of the question.
        sequence: its tokens with [CLS] and [SEP].
        first: position in the sequence of the context's first token.
        offsets: int64[n, 2], first and last character (exclusive) of each of the context's n tokens.
        span: positions in the sequence of the answer's first and last token.
    """

    question: int
    sequence: TokenSequence
    first: int
    offsets: Int64s
    span: tuple[int, int]


def read_questions(path: str, *, unanswerable: bool) -> list[Question]:
    """Return the questions of a file in SQuAD's format, in file order.

    Args:
        path: the file.
        unanswerable: whether questions may have no answer.

    Raises:
        DataError: the file is missing, malformed or has no questions, or an answer is missing or not at its position;
            names the question.
        StorageError: it cannot be read.
    """
    questions = _questions_of_document(path, answered=True)
    for question in questions:
        if not question.answers and not unanswerable:
            raise DataError(
                f"{question.place}: it has no answer; for a file like SQuAD 2.0 add `objective.unanswerable`"
            )
    return questions


def read_unanswered(path: str, *, by_line: bool) -> list[Question]:
    """Return the questions of a file, ignoring any answers in it.

    Args:
        path: the file; ``"-"`` for standard input.
        by_line: whether each line is ``{"question": "...", "context": "..."}``, with an optional ``id``, instead of
            SQuAD's format; the default id is the number of the question, from 1.

    Raises:
        DataError: the file is missing, malformed or has no questions; names the line or the question.
        StorageError: it cannot be read.
    """
    if not by_line:
        return _questions_of_document(path, answered=False)
    data, name = read_whole(path, "the file of questions")
    records = read_objects(io.BytesIO(data), name, LARGEST_FILE, skip_blank=True, load=load_strictly)
    questions = [
        _question_of_line(record, str(record.get("id", number)), place)
        for number, (place, record) in enumerate(records, 1)
    ]
    if not questions:
        raise DataError(f"{name}: the file has no questions; expected JSON lines with a question and a context")
    return questions


def make_windows(
    questions: Sequence[Question], tokenizer: Tokenizer, rules: SpanConfig, sequence_length: int
) -> list[Window]:
    """Return the windows of all questions, in order.

    Raises:
        DataError: an answer or a context has no tokens.
        UserError: the tokenizer lacks a special token, or ``sequence_length`` has no room for questions.
    """
    room = sequence_length - num_special(tokenizer, pair=True) - rules.max_question_tokens
    if room < 1:
        raise UserError(
            f"sequences of {sequence_length} tokens have no room for questions of {rules.max_question_tokens} and a "
            "text; raise data.sequence_length, or lower objective.max_question_tokens"
        )
    contexts = list(dict.fromkeys(question.context for question in questions))
    found = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    asked = tokenizer.encode_batch([question.question for question in questions])
    windows: list[Window] = []
    for number, (question, tokens) in enumerate(zip(questions, asked, strict=True)):
        ids, offsets = found[question.context]
        short = tokens[: rules.max_question_tokens]
        span = _token_span(question, offsets)
        for start, end in _stretches(len(ids), room + rules.max_question_tokens - len(short), rules.document_stride):
            sequence = frame(tokenizer, short, ids[start:end])
            first = len(sequence.tokens) - 1 - (end - start)
            inside = span is not None and start <= span[0] and span[1] < end
            own = (first + span[0] - start, first + span[1] - start) if span and inside else (NO_ANSWER, NO_ANSWER)
            windows.append(Window(number, sequence, first, offsets[start:end], own))
    return windows


def labelled_windows(
    questions: Sequence[Question], tokenizer: Tokenizer, rules: SpanConfig, sequence_length: int
) -> tuple[list[TokenSequence], Int64s]:
    """Return the sequences of all windows and int64[N, 2], their spans; errors as ``make_windows``."""
    windows = make_windows(questions, tokenizer, rules, sequence_length)
    return [window.sequence for window in windows], np.array([window.span for window in windows], dtype=np.int64)


def _stretches(num_tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield first and last token (exclusive) of each window of a text; every token is covered, whatever the stride."""
    step = min(stride, room)
    for start in range(0, max(num_tokens - room, 0) + step, step):
        yield start, min(start + room, num_tokens)


def _token_span(question: Question, offsets: Int64s) -> tuple[int, int] | None:
    """Return the first and last token that overlap the first answer; None if there is no answer."""
    if not len(offsets):
        raise DataError(f"{question.place}: its context has no tokens; correct the file")
    if not question.answers:
        return None
    text, start = question.answers[0]
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    if not len(inside):
        raise DataError(f"{question.place}: its answer {text!r:.80} has no tokens; correct the file")
    return int(inside[0]), int(inside[-1])


def _questions_of_document(path: str, *, answered: bool) -> list[Question]:
    data, name = read_whole(path, "the file of questions")
    try:
        document = load_strictly(data.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name} is not valid JSON ({reason}); expected SQuAD's, one object with 'data'") from error
    questions = list(_questions(document, name, answered=answered))
    if not questions:
        raise DataError(f"{name}: the file has no questions; expected SQuAD's JSON")
    return questions


def _question_of_line(record: dict[str, Any], id_: str, place: str) -> Question:
    question, context = (text_in(record, field, place) for field in ("question", "context"))
    for field, text in (("question", question), ("context", context), ("id", id_)):
        if not text.strip():
            raise DataError(f"{place}: {field!r} has no text; correct the line or remove it")
        utf8_of(text, place, repr(field))
    return Question(id=id_, question=question, context=context, answers=(), place=place)


def _questions(document: Any, path: str, *, answered: bool) -> Iterator[Question]:
    try:
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    yield _question(entry, paragraph["context"], path, answered=answered)
    except (KeyError, TypeError, IndexError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else "a value of the wrong type"
        expected = "id, question, answers, text and answer_start" if answered else "id and question"
        raise DataError(
            f"{path}: not SQuAD's JSON ({reason}); expected data, paragraphs, context, qas, {expected}"
        ) from error


def _question(entry: Any, context: Any, path: str, *, answered: bool) -> Question:
    id_ = str(entry["id"])
    place = f"{path}, question {id_[:80]!r}"
    found = entry["answers"] if answered else ()
    answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in found)
    for text in (entry["question"], context, *(answer.text for answer in answers)):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{place}: question, context or answer is not a text; correct the file")
        utf8_of(text, place, f"the text {text[:40]!r}")
    utf8_of(id_, place, "the id")
    for text, start in answers:
        if type(start) is not int or start < 0 or context[start : start + len(text)] != text:
            raise DataError(
                f"{place}: the answer {text!r:.80} is not at character {start} of its context; correct the file"
            )
    is_impossible = entry.get("is_impossible", False)
    return Question(
        id=id_,
        question=entry["question"],
        context=context,
        answers=() if is_impossible else answers,
        place=place,
    )
