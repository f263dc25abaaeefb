"""``hornbook corpus merge``: join the parts that ``hornbook corpus build --part`` built.

hornbook corpus build web/ --tokenizer tokenizers/mine --output corpora/web --part 1/64
hornbook corpus merge corpora/web
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from hornbook.cli.arguments import declared_values
from hornbook.cli.corpus_build import add_tolerance_arguments, report_lines
from hornbook.cli.inputs import note, report_faults
from hornbook.cli.table import say
from hornbook.text.quality.policy import Tolerance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``corpus merge``."""
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder of the corpus, as in corpus build --output")
    add_tolerance_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Merge the parts of a corpus; return its counts."""
    from hornbook.corpora.building.separate import merge_parts

    started = time.monotonic()
    report = merge_parts(arguments.output, Tolerance(**declared_values(arguments, Tolerance)), note)
    seconds = time.monotonic() - started
    report_faults(report.faults, report.messages)
    say(*report_lines(report, seconds, "auto"))
    return asdict(report) | {"seconds": round(seconds, 3)}
