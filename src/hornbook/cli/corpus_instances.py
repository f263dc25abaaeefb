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

from hornbook.cli.arguments import TOKENIZER_HELP, add_declared, declared_values
from hornbook.cli.table import say, token_progress
from hornbook.config.options import describe
from hornbook.interop.convert import INSTANCE_FORMATS, INSTANCE_SOURCES
from hornbook.interop.instances.instance_builder import InstanceOptions
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.interop.instances.instance_builder import InstanceReport

_REMASKED = "bert-tfrecord-remasked"
_OPTIONS = tuple(name for name in describe(InstanceOptions) if name != "format_name")
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
    for name in _OPTIONS:
        metavar = {"metavar": "SHARE"} if name.endswith("probability") else {}
        add_declared(parser, InstanceOptions, name, **metavar)
    parser.add_argument("--remask", action="store_true", help=f"the same as --format {_REMASKED}")
    parser.add_argument(
        "--format",
        choices=INSTANCE_FORMATS,
        metavar="NAME",
        help=f"output format: {', '.join(INSTANCE_FORMATS)} (default: {INSTANCE_FORMATS[0]})",
    )


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Write instances and return their counts; raise UserError if an option does not apply."""
    from hornbook.corpora.folders import splits_of
    from hornbook.corpora.store import open_store
    from hornbook.errors import UserError
    from hornbook.interop.instances.instance_builder import build_instances
    from hornbook.text.tokenizer import Tokenizer

    if arguments.remask and arguments.format not in (None, _REMASKED):
        raise UserError(f"--remask selects {_REMASKED}, but --format selects {arguments.format}; remove one of them")
    format_name = _REMASKED if arguments.remask else arguments.format or INSTANCE_FORMATS[0]
    options = InstanceOptions(**declared_values(arguments, InstanceOptions), format_name=format_name)
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


def _lines(output: Path, report: "InstanceReport", seconds: float) -> Iterator[str]:
    yield f"{output} made in {seconds:.1f} s: {counted(report.instances, 'instance')}, {report.tokens:,} tokens"
    yield _shares(report)


def _shares(report: "InstanceReport") -> str:
    count = report.instances
    return (
        f"  a mean of {report.tokens / count:.1f} tokens, {report.masked / count:.1f} of them masked; "
        f"{report.full / count:.0%} without padding, {report.random_pairs / count:.0%} with a random second text"
    )
