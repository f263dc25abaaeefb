"""``hornbook corpus build``: text into a corpus, or on with a build that was interrupted.

hornbook corpus build my-texts/ --tokenizer tokenizers/mine --validation 0.02 --output corpora/mine
hornbook corpus build wiki.jsonl --tokenizer tokenizers/bert --sequences sentences --output corpora/pairs
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import fraction, positive_integer
from hornbook.cli.inputs import add_input_arguments, note, read_options, report_faults
from hornbook.cli.progress import token_progress
from hornbook.cli.quality import add_quality_arguments, quality_options, tolerance
from hornbook.errors import UserError
from hornbook.storage.system import format_bytes
from hornbook.wording import counted, counted_kind

if TYPE_CHECKING:
    from hornbook.corpus.build.builder import BuildOptions, BuildReport, Progress


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``corpus build``."""
    add_input_arguments(parser)
    parser.add_argument("--tokenizer", required=True, metavar="PATH", help="a tokenizer.json, or a folder with one")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the corpus, a new folder")
    parser.add_argument(
        "--validation",
        type=fraction,
        default=0.0,
        metavar="SHARE",
        help="documents to hold out, chosen by a hash of their text, as in 0.02 (default: none)",
    )
    parser.add_argument(
        "--sequences",
        choices=("documents", "sentences", "lines"),
        default="documents",
        help="what a sequence of the store is: a whole document, as for GPT; one of its sentences, as for BERT's "
        "pairs; one of its lines, for text with a sentence a line (default: documents)",
    )
    parser.add_argument(
        "--sentence-language",
        metavar="CODE",
        help="by whose rules to find sentences, as in de; a code without rules takes those of a related language, or "
        "else of English (default: en)",
    )
    parser.add_argument(
        "--end-of-text",
        choices=("stored", "inserted"),
        help="end each document with that token in the store, or let readers put it in (default: stored where the "
        "tokenizer has one; of sentences, readers put it in)",
    )
    parser.add_argument(
        "--threads", type=positive_integer, metavar="N", help="to read dumps and tokenize with (default: all cores)"
    )
    parser.add_argument(
        "--encoder",
        choices=("auto", "tokenizers"),
        default="auto",
        help="auto: tiktoken, if it is installed and gives the same tokens, for inputs over 16 MiB; tokenizers: never",
    )
    add_quality_arguments(parser)
    parser.set_defaults(handler=build_command)


def build_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Build a corpus; return its counts."""
    import os

    from hornbook.corpus.build.builder import build_corpus
    from hornbook.text.tokenizer import Tokenizer

    if arguments.threads:
        os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # read when the library first tokenizes
    options = _build_options(arguments)
    tokenizer = Tokenizer.load(arguments.tokenizer)
    started = time.monotonic()
    with token_progress() as show:

        def on_progress(progress: "Progress") -> None:
            show(counted(progress.documents, "document"), progress.tokens, progress.read, progress.total)

        report = build_corpus(arguments.inputs, tokenizer, arguments.output, options, on_progress, note)
    seconds = time.monotonic() - started
    report_faults(report.faults, report.messages)
    sys.stdout.writelines(f"{line}\n" for line in _lines(report, seconds))
    return asdict(report) | {"seconds": round(seconds, 3)}


def _build_options(arguments: argparse.Namespace) -> "BuildOptions":
    """The options that were given.

    Raises:
        UserError: one does not apply.
    """
    from hornbook.corpus.build.builder import BuildOptions

    if arguments.sentence_language and arguments.sequences != "sentences":
        raise UserError("--sentence-language does nothing without --sequences sentences; add it, or leave this out")
    reading = read_options(arguments)
    return BuildOptions(
        validation=arguments.validation,
        end_of_text=arguments.end_of_text,
        sequences=arguments.sequences,
        language=arguments.sentence_language or "en",
        encoder=arguments.encoder,
        threads=reading.processes,
        reading=reading,
        quality=quality_options(arguments),
        tolerance=tolerance(arguments),
    )


def _lines(report: "BuildReport", seconds: float) -> Iterator[str]:
    done = "is built already, of the same inputs and options" if report.already_built else f"built in {seconds:.1f} s"
    yield f"{report.output} {done}"
    for name, split in report.splits.items():
        documents, size = counted(split.documents, "document"), format_bytes(split.num_bytes)
        yield f"  {name:<10} {documents:>22} {split.tokens:>16,} tokens {size:>12} of text"
    if report.empty or report.faults:
        yield f"  left out: {counted(report.empty, 'empty document')}, {counted(report.faults, 'unreadable one')}"
    for what, counts in (("skipped", sorted(report.skipped.items())), ("dropped", report.dropped.items())):
        if shown := ", ".join(counted_kind(count, kind) for kind, count in counts if count):
            yield f"  {what}: {shown}"
