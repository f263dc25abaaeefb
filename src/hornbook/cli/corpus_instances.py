"""``hornbook corpus instances``: write masked sentence pairs in BERT's file formats.

hornbook corpus instances corpora/books pretrain.tfrecord --sequence-length 128 --max-predictions 20 --duplicates 6
hornbook corpus instances corpora/books shards --remask --records-per-file 100000
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import TOKENIZER_HELP, fraction, natural_number, positive_fraction, positive_integer
from hornbook.cli.table import say, token_progress
from hornbook.interop.convert import INSTANCE_FORMATS, INSTANCE_SOURCES
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.interop.instances.instance_builder import InstanceReport

_REMASKED = "bert-tfrecord-remasked"
_DESCRIPTION = "Make next-sentence pairs of a sentence store, mask them, and write them as instances for BERT."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``corpus instances``."""
    parser.description = _DESCRIPTION
    parser.add_argument("store", metavar="STORE", help="corpus or store built with --sequences sentences")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="new file or folder; must not exist")
    parser.add_argument("--split", metavar="NAME", help="split of a corpus (default: train)")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help=f"tokenizer of the tokens, for a store without one: {TOKENIZER_HELP}"
    )
    _add_sizes(parser)
    parser.add_argument("--seed", type=natural_number, default=1984, help="random seed")
    parser.add_argument("--whole-words", action="store_true", help="mask all pieces of a word together")
    parser.add_argument("--remask", action="store_true", help=f"the same as --format {_REMASKED}")
    parser.add_argument(
        "--format",
        choices=INSTANCE_FORMATS,
        metavar="NAME",
        help=f"output format: {', '.join(INSTANCE_FORMATS)} (default: {INSTANCE_FORMATS[0]})",
    )
    parser.add_argument(
        "--records-per-file", type=positive_integer, help="write a folder of TFRecord files with N records each"
    )


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Write instances and return their counts; raise UserError if an option does not apply."""
    from dataclasses import fields

    from hornbook.corpora.store import open_store, splits_of
    from hornbook.errors import UserError
    from hornbook.interop.instances.instance_builder import InstanceOptions, build_instances
    from hornbook.text.tokenizer import Tokenizer

    names = {field.name for field in fields(InstanceOptions)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    if arguments.remask and arguments.format not in (None, _REMASKED):
        raise UserError(f"--remask selects {_REMASKED}, but --format selects {arguments.format}; remove one of them")
    format_name = _REMASKED if arguments.remask else arguments.format or INSTANCE_FORMATS[0]
    options = InstanceOptions(**values, format_name=format_name)
    store = open_store(arguments.store, arguments.split or "train")
    if arguments.split and not splits_of(arguments.store):
        raise UserError(f"--split applies only to a corpus, and {arguments.store} is a single store; remove it")
    tokenizer = Tokenizer.load(arguments.tokenizer) if arguments.tokenizer else None
    started = time.monotonic()
    with token_progress() as show:

        def on_progress(instances: int, tokens: int) -> None:
            show(counted(instances, "instance"), tokens)

        report = build_instances(store, arguments.output, options, tokenizer, on_progress)
    seconds = time.monotonic() - started
    say(*_lines(arguments.output, report, seconds))
    return asdict(report) | {"output": arguments.output, "format": options.format_name, "seconds": round(seconds, 3)}


def are_instances(path: Path) -> bool:
    """Return whether a path is a file or folder of instances; raise DataError if it is a damaged one."""
    from hornbook.formats.arrow import is_dataset
    from hornbook.interop.convert.detect import detect_source
    from hornbook.interop.formats.tfrecord import begins_with_record

    if path.is_file():
        looks_so = path.suffix == ".arrow" or ".tfrecord" in path.name or begins_with_record(path)
    else:
        looks_so = is_dataset(path) or any(path.glob("*.tfrecord*"))
    return looks_so and detect_source(path) in INSTANCE_SOURCES


def inspect_instances(path: Path) -> dict[str, object]:
    """Read all of a file of instances; print and return its counts."""
    from hornbook.interop.convert.conversion import read_instances
    from hornbook.interop.convert.detect import detect_source
    from hornbook.interop.instances.instance_builder import describe_instances

    format_name = detect_source(path)
    instances = read_instances(path, format_name)
    report, most = describe_instances(instances), instances.max_predictions
    say(str(path), f"  {format_name}, {counted(report.instances, 'instance')}, {report.tokens:,} tokens")
    predictions = "" if most is None else f", {most} predictions"
    sys.stdout.write(f"  padded to {instances.sequence_length} tokens{predictions}\n{_shares(report)}\n")
    sizes = {"sequence_length": instances.sequence_length, "max_predictions": most}
    return {"instances": str(path), "format": format_name} | sizes | {"counts": asdict(report)}


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    for name, kind, default, meaning in (
        ("sequence-length", positive_integer, 128, "tokens of an instance, [CLS] and [SEP] included"),
        ("max-predictions", positive_integer, 20, "maximum number of masked tokens per instance"),
        ("duplicates", positive_integer, 6, "passes through the text, each with its own pairs and masks"),
        ("mask-probability", positive_fraction, 0.15, "share of masked tokens"),
        ("short-sequence-probability", fraction, 0.1, "share of pairs shortened to a random length"),
    ):
        metavar = "N" if kind is positive_integer else "SHARE"
        parser.add_argument(
            f"--{name}", type=kind, default=default, metavar=metavar, help=f"{meaning} (default: {default})"
        )


def _lines(output: Path, report: "InstanceReport", seconds: float) -> Iterator[str]:
    yield f"{output} made in {seconds:.1f} s: {counted(report.instances, 'instance')}, {report.tokens:,} tokens"
    yield _shares(report)


def _shares(report: "InstanceReport") -> str:
    count = report.instances
    return (
        f"  a mean of {report.tokens / count:.1f} tokens, {report.masked / count:.1f} of them masked; "
        f"{report.full / count:.0%} full, {report.random_pairs / count:.0%} with a random second text"
    )
