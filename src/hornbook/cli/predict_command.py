"""``hornbook predict``: predict classes or answers with a fine-tuned model.

hornbook predict runs/classify texts.csv > predictions.jsonl
hornbook predict runs/squad dev-v1.1.json --num-best 3 --output answers.jsonl
echo "Call me Ishmael." | hornbook predict runs/classify -
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hornbook.cli.arguments import positive_integer
from hornbook.cli.texts_of_file import add_file_arguments, in_groups, load, write_records

if TYPE_CHECKING:
    from hornbook.cli.conversation import Record
    from hornbook.config import ClassificationConfig, SpanConfig
    from hornbook.evaluate import TaskInput
    from hornbook.generate.answers import FoundAnswer

_OF_CLASSES, _OF_SPANS = ("text", "second_text", "top_k"), ("num_best", "unanswerable")
"""Options that apply only to one kind of model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file_arguments(parser, formats=("jsonl", "csv", "tsv", "text", "squad"), result="the predictions")
    classes = parser.add_argument_group("models that classify")
    classes.description = "FILE has one text per row (.jsonl, .csv, .tsv) or per line (any other); labels are ignored"
    classes.add_argument("--second-text", metavar="NAME", help="field or column with the second text of a pair")
    classes.add_argument("--top-k", type=positive_integer, metavar="K", help="output only the K most likely classes")
    spans = parser.add_argument_group("models that answer questions")
    spans.description = (
        "FILE is SQuAD's JSON or has a question and a context per line (.jsonl, standard input); answers are ignored"
    )
    spans.add_argument("--num-best", type=positive_integer, help="also output the N best answers to each question")
    spans.add_argument(
        "--unanswerable",
        action="store_true",
        default=None,
        help="allow the prediction that there is no answer, as in SQuAD 2.0 (default: as in training)",
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a line of JSON for each text or question, and return their number."""
    from hornbook.config import ClassificationConfig, SpanConfig
    from hornbook.generate.classes import refuse_without_labels

    given = load(arguments)
    objective = given.loaded.recipe.objective
    if isinstance(objective, ClassificationConfig):
        _refuse_options(arguments, _OF_SPANS, "squad", given.loaded.path, "classifies texts")
        return _classify(arguments, given, objective)
    if not isinstance(objective, SpanConfig):
        refuse_without_labels(given.loaded)
    _refuse_options(arguments, _OF_CLASSES, "csv tsv text", given.loaded.path, "answers questions")
    return {"checkpoint": given.loaded.path, **write_records(_answer(arguments, given, objective), arguments)}


def _classify(arguments: argparse.Namespace, given: "TaskInput", columns: "ClassificationConfig") -> dict[str, Any]:
    """Read and encode all texts, so that errors precede any result; write their classes and count truncated texts."""
    from hornbook.generate.classes import class_logits, class_names, most_likely
    from hornbook.samples.labelled_texts import encode_examples, read_examples, truncation_warning
    from hornbook.track.console import Console

    labels = class_names(given.loaded, columns)
    columns = replace(
        columns,
        text=arguments.text or columns.text,
        second_text=arguments.second_text or columns.second_text,
    )
    examples = read_examples(arguments.file, columns, labelled=False, format=arguments.format)
    model, size = given.loaded.model, given.micro_batch_size
    tokenizer, length = given.require_tokenizer(), given.window_length
    sequences, num_truncated = encode_examples(examples, tokenizer, length, is_causal=model.is_causal)
    if num_truncated:
        noun = "pair" if columns.second_text else "text"
        Console().warn(truncation_warning(num_truncated, len(examples), length, done="classified", noun=noun))
    records = (
        record
        for group in in_groups(sequences, size)
        for record in most_likely(class_logits(model, group, batch_size=size), labels, arguments.top_k)
    )
    return {"checkpoint": given.loaded.path, "truncated": num_truncated, **write_records(records, arguments)}


@dataclass(frozen=True, kw_only=True)
class _Answered:
    """A question and its answers, best first; written with only the best one unless ``lists``."""

    id: str
    answers: "list[FoundAnswer]"
    lists: bool

    def as_json(self) -> dict[str, Any]:
        answers = [answer.as_json() for answer in self.answers]
        return {"id": self.id, **answers[0], **({"n_best": answers} if self.lists else {})}


def _answer(arguments: argparse.Namespace, given: "TaskInput", rules: "SpanConfig") -> "Iterator[Record]":
    """Read and encode all questions, so that errors precede any result; return an iterator over their answers."""
    from hornbook.generate.answers import by_question, find_answers
    from hornbook.samples.squad import make_windows, read_unanswered
    from hornbook.text.reading import STANDARD_INPUT

    by_line = arguments.format == "jsonl"
    if arguments.format == "auto":
        by_line = arguments.file == STANDARD_INPUT or arguments.file.lower().endswith((".jsonl", ".ndjson"))
    rules = replace(rules, unanswerable=rules.unanswerable or bool(arguments.unanswerable))
    questions = read_unanswered(arguments.file, by_line=by_line)
    windows = make_windows(questions, given.require_tokenizer(), rules, given.window_length)
    model, size = given.loaded.model, given.micro_batch_size
    return (
        _Answered(id=questions[own[0].question].id, answers=answers, lists=arguments.num_best is not None)
        for group in in_groups(by_question(windows), size)
        for own, answers in zip(
            group,
            find_answers(model, questions, group, rules, num_best=arguments.num_best or 1, batch_size=size),
            strict=True,
        )
    )


def _refuse_options(
    arguments: argparse.Namespace, options: tuple[str, ...], formats: str, path: Any, what: str
) -> None:
    """Raise UserError for an option or a format that applies only to the other kind of model."""
    from hornbook.errors import UserError

    for name in options:
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} does not apply: {path} {what}; remove it")
    if arguments.format in formats.split():
        raise UserError(f"--format {arguments.format} does not apply: {path} {what}; see docs/fine-tuning.md")
