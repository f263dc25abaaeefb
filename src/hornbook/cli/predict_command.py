"""``hornbook predict``: predict classes or answers with a fine-tuned model; and what it shares with ``hornbook embed``.

hornbook predict runs/classify texts.csv > predictions.jsonl
hornbook predict runs/squad dev-v1.1.json --num-best 3 --output answers.jsonl
echo "Call me Ishmael." | hornbook predict runs/classify -

Both compute a result for each text of a file, in order:

texts.jsonl | texts.csv | texts.tsv | texts.txt | -   ->  model, in batches of similar lengths
    ->  a line of JSON each, on standard output or in --output FILE
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hornbook.cli.arguments import COMPUTE, add_device_arguments, positive_integer
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.cli.conversation import Record
    from hornbook.config import ClassificationConfig, SpanConfig
    from hornbook.evaluate import TaskInput
    from hornbook.generate.answers import FoundAnswer

Item = TypeVar("Item")
_BATCHES_AT_ONCE = 64
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


def add_file_arguments(parser: argparse.ArgumentParser, *, formats: Sequence[str], result: str) -> None:
    """Declare CHECKPOINT, FILE and the options for reading, computing and writing."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, checkpoint or Hugging Face folder")
    parser.add_argument("file", metavar="FILE", help="file of texts, in UTF-8; - for standard input")
    parser.add_argument(
        "--format", choices=("auto", *formats), default="auto", help="format of FILE; auto: by file extension"
    )
    parser.add_argument(
        "--text",
        metavar="NAME",
        help="field or column with the text; for a table without a header, the column number, from 0",
    )
    parser.add_argument(
        "--window",
        type=positive_integer,
        help="maximum tokens per sequence; longer texts are truncated at the end (default: as in training)",
    )
    parser.add_argument("--batch-size", type=positive_integer, default=32, help="sequences per batch")
    parser.add_argument(
        "--compute",
        choices=COMPUTE,
        default="fp32",
        help="dtype of the activations; only with fp32 are results independent of the batch",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"write {result} to FILE instead of standard output"
    )
    add_device_arguments(parser)


def load(arguments: argparse.Namespace) -> "TaskInput":
    """Return the model with the maximum length and the batch size.

    Raises:
        UserError: the output would replace the input, or the model does not support the options.
    """
    from hornbook.checkpoint.load import require_source
    from hornbook.errors import UserError

    require_source(arguments.checkpoint)
    from hornbook.evaluate import TaskInput
    from hornbook.exchange.restore import load_model
    from hornbook.parallel.device import prepare

    output = arguments.output
    if output is not None and output.is_file() and Path(arguments.file).is_file() and output.samefile(arguments.file):
        raise UserError(f"--output {output} is the input file; choose another")
    device = prepare(arguments.device, arguments.threads)
    loaded = load_model(arguments.checkpoint, device, compute=arguments.compute)
    return TaskInput(loaded=loaded, micro_batch_size=arguments.batch_size, window=arguments.window)


def in_groups(items: Sequence[Item], batch_size: int) -> Iterator[Sequence[Item]]:
    """Yield groups of several batches: large enough to sort by length, small enough to return results soon."""
    size = batch_size * _BATCHES_AT_ONCE
    for start in range(0, len(items), size):
        yield items[start : start + size]


def write_records(records: "Iterable[Record]", arguments: argparse.Namespace) -> dict[str, Any]:
    """Write results as JSON lines; return them with ``--json`` if no file is given.

    Raises:
        StorageError: the disk is full.
    """
    from hornbook.cli.conversation import Output

    file, is_wanted = arguments.output, arguments.json and arguments.output is None
    started, count = time.perf_counter(), 0
    with Output(as_json=file is None and not arguments.json, file=file, keeps=is_wanted) as output:
        for record in records:
            output.add(record)
            count += 1
    note_speed(count, time.perf_counter() - started)
    return {"count": count, "output": file} if file else {"count": count, "results": output.records}


def note_speed(count: int, seconds: float) -> None:
    """Print the number of texts and the speed to standard error."""
    print(f"{counted(count, 'text')} in {seconds:.2f} s, {count / max(seconds, 1e-6):,.1f} a second", file=sys.stderr)
