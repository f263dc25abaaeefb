"""Shared parts of ``predict`` and ``embed``, which compute a result for each text of a file, in order.

texts.jsonl | texts.csv | texts.tsv | texts.txt | -   ->  model, in batches of similar lengths
    ->  a line of JSON each, on standard output or in --output FILE
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hornbook.cli.arguments import COMPUTE, add_device_arguments, positive_integer, prepared_device
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.cli.conversation import Record
    from hornbook.evaluate import TaskInput

Item = TypeVar("Item")
_BATCHES_AT_ONCE = 64


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

    output = arguments.output
    if output is not None and output.is_file() and Path(arguments.file).is_file() and output.samefile(arguments.file):
        raise UserError(f"--output {output} is the input file; choose another")
    loaded = load_model(arguments.checkpoint, prepared_device(arguments), compute=arguments.compute)
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
