"""``hornbook corpus build``: tokenize text into a corpus, or resume an interrupted build.

hornbook corpus build my-texts/ --tokenizer tokenizers/mine --validation 0.02 --output corpora/mine
hornbook corpus build wiki.jsonl --tokenizer tokenizers/bert --sequences sentences --output corpora/pairs
hornbook corpus build web/ --min-words 50 --drop-duplicates --drop-near-duplicates 0.8 --decontaminate lambada.jsonl ...
"""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hornbook.cli.arguments import TOKENIZER_HELP, fraction, natural_number, positive_fraction, positive_integer
from hornbook.cli.inputs import add_held_out_arguments, add_input_arguments, note, read_options, report_faults
from hornbook.cli.progress import token_progress
from hornbook.cli.table import say
from hornbook.errors import UserError
from hornbook.parallel.launched import leave_cleanly
from hornbook.storage.system import format_bytes
from hornbook.text.quality.policy import (
    DEFAULT_LANGUAGE_PROBABILITY,
    DEFAULT_OVERLAP_WORDS,
    KINDS,
    MOST_DROPPED,
    QualityOptions,
    Tolerance,
)
from hornbook.wording import counted, counted_kind

if TYPE_CHECKING:
    from hornbook.corpora.building.builder import BuildReport, Progress

_NEEDS: Final = {
    "language_probability": "--language",
    "language_from": "--language",
    "decontaminate_field": "--decontaminate",
    "decontaminate_words": "--decontaminate",
    "decontaminate_overlap": "--decontaminate",
}
"""The option that each of these options requires."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``corpus build``."""
    add_input_arguments(parser)
    parser.add_argument("--tokenizer", required=True, metavar="PATH", help=TOKENIZER_HELP)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of the new corpus")
    add_held_out_arguments(parser, does="hold out")
    parser.add_argument(
        "--sequences",
        choices=("documents", "sentences", "lines"),
        default="documents",
        help=(
            "unit that is stored as a sequence: documents, for GPT; sentences, for BERT's pairs; "
            "lines, for text with one sentence per line (default: documents)"
        ),
    )
    parser.add_argument(
        "--sentence-language",
        metavar="CODE",
        help=(
            "language whose rules split sentences, such as de; a language without rules uses those of "
            "a related one, or of English (default: en)"
        ),
    )
    parser.add_argument(
        "--end-of-text",
        choices=("stored", "inserted"),
        help=(
            "store the end-of-text token after each document, or let readers insert it (default: "
            "stored if the tokenizer has one; inserted with sentences and lines)"
        ),
    )
    parser.add_argument(
        "--threads",
        type=positive_integer,
        metavar="N",
        help="threads for tokenizing, and processes for reading dumps (default: all cores)",
    )
    parser.add_argument(
        "--encoder",
        choices=("auto", "tokenizers"),
        default="auto",
        help=(
            "tokenizer implementation; auto: tiktoken for inputs over 16 MiB, if it is installed and "
            "gives the same tokens; tokenizers: the tokenizers library (default: auto)"
        ),
    )
    add_quality_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Build a corpus; return its counts. Raises UserError if an option does not apply."""
    from hornbook.corpora.building.builder import BuildOptions, build_corpus
    from hornbook.text.tokenizer import Tokenizer

    if arguments.threads:
        os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # read when the library first tokenizes
    if arguments.sentence_language and arguments.sequences != "sentences":
        raise UserError(
            "--sentence-language has no effect without --sequences sentences; add it, or remove --sentence-language"
        )
    reading = read_options(arguments)
    options = BuildOptions(
        validation=arguments.validation,
        validation_tail=arguments.validation_tail,
        end_of_text=arguments.end_of_text,
        sequences=arguments.sequences,
        language=arguments.sentence_language or "en",
        encoder=arguments.encoder,
        threads=reading.processes,
        reading=reading,
        quality=quality_options(arguments),
        tolerance=Tolerance(max_dropped=arguments.max_dropped, allow=tuple(arguments.allow)),
    )
    tokenizer = Tokenizer.load(arguments.tokenizer)
    started = time.monotonic()
    with leave_cleanly("during the build"), token_progress() as show:

        def on_progress(progress: "Progress") -> None:
            show(counted(progress.documents, "document"), progress.tokens, progress.read, progress.total)

        report = build_corpus(arguments.inputs, tokenizer, arguments.output, options, on_progress, note)
    seconds = time.monotonic() - started
    report_faults(report.faults, report.messages)
    say(*_lines(report, seconds, arguments.format))
    return asdict(report) | {"seconds": round(seconds, 3)}


def add_quality_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the filters and the checks of the result."""
    group = parser.add_argument_group("filters", ("a dropped document counts for the first filter that drops it"))
    group.add_argument("--min-characters", type=natural_number, default=0, metavar="N", help="drop shorter documents")
    group.add_argument(
        "--min-words", type=natural_number, default=0, metavar="N", help="drop documents with fewer words"
    )
    group.add_argument(
        "--keep-matching",
        action="append",
        default=[],
        metavar="RE",
        help="drop documents without a match of this regular expression (RE2 syntax); repeatable",
    )
    group.add_argument(
        "--drop-matching",
        action="append",
        default=[],
        metavar="RE",
        help="drop documents with a match of this regular expression; repeatable",
    )
    group.add_argument(
        "--language",
        action="append",
        default=[],
        metavar="CODE",
        help="drop documents in other languages than this one, such as en; repeatable, for several languages",
    )
    group.add_argument(
        "--language-probability",
        type=fraction,
        metavar="P",
        help=f"minimum probability of the languages (default: {DEFAULT_LANGUAGE_PROBABILITY:g})",
    )
    group.add_argument(
        "--language-from",
        choices=("text", "record"),
        help="record: by the first language in a web archive's record (WET), if any; text: by the text (default)",
    )
    _add_comparing_filters(group)
    outcome = parser.add_argument_group("checks of the result", "a suspicious corpus is an error")
    outcome.add_argument(
        "--max-dropped",
        type=fraction,
        default=MOST_DROPPED,
        metavar="SHARE",
        help=f"maximum share of dropped and unreadable documents (default: {MOST_DROPPED:g})",
    )
    outcome.add_argument(
        "--allow",
        action="append",
        choices=KINDS,
        default=[],
        metavar="KIND",
        help=f"accept this suspicion: {', '.join(KINDS)}; repeatable",
    )


def _add_comparing_filters(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--drop-duplicates", action="store_true", help="drop copies of an earlier document, ignoring white space"
    )
    group.add_argument(
        "--drop-near-duplicates",
        type=positive_fraction,
        metavar="SHARE",
        help=(
            "drop documents whose 5-word shingles overlap with those of a kept document by this share "
            "(Jaccard similarity), such as 0.8"
        ),
    )
    group.add_argument(
        "--decontaminate",
        action="append",
        default=[],
        metavar="FILE",
        help="drop documents that overlap with this evaluation set, a file (text, JSONL, Parquet); repeatable",
    )
    group.add_argument(
        "--decontaminate-field",
        metavar="NAME",
        help="field of the evaluation set's records with the text (default: text)",
    )
    group.add_argument(
        "--decontaminate-words",
        type=positive_integer,
        metavar="N",
        help=f"length of the compared n-grams in words (default: {DEFAULT_OVERLAP_WORDS})",
    )
    group.add_argument(
        "--decontaminate-overlap",
        type=positive_integer,
        metavar="N",
        help="number of common n-grams from which a document is dropped (default: 1)",
    )


def quality_options(arguments: argparse.Namespace) -> QualityOptions:
    """Return the filter options; raise UserError if one requires another that is missing."""
    refined = {name: getattr(arguments, name) for name in _NEEDS if getattr(arguments, name) is not None}
    for name in refined:
        if not getattr(arguments, _NEEDS[name].removeprefix("--")):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} has no effect without {_NEEDS[name]}; add it, or remove {option}")
    return QualityOptions(
        min_characters=arguments.min_characters,
        min_words=arguments.min_words,
        keep_matching=tuple(arguments.keep_matching),
        drop_matching=tuple(arguments.drop_matching),
        languages=tuple(arguments.language),
        exact_duplicates=arguments.drop_duplicates,
        near_duplicates=arguments.drop_near_duplicates,
        decontaminate=tuple(arguments.decontaminate),
        **refined,
    )


def _lines(report: "BuildReport", seconds: float, format_name: str) -> Iterator[str]:
    from hornbook.corpora.building.token_pipeline import example_lines

    done = "is already built from the same inputs and options" if report.already_built else f"built in {seconds:.1f} s"
    yield f"{report.output} {done}"
    for name, split in report.splits.items():
        documents, size = counted(split.documents, "document"), format_bytes(split.num_bytes)
        yield f"  {name:<10} {documents:>22} {split.tokens:>16,} tokens {size:>12} of text"
    if report.empty or report.faults:
        yield (f"  dropped: {counted(report.empty, 'empty document')}, {counted(report.faults, 'unreadable one')}")
    for what, counts in (("skipped", sorted(report.skipped.items())), ("dropped", report.dropped.items())):
        if shown := ", ".join(counted_kind(count, kind) for kind, count in counts if count):
            yield f"  {what}: {shown}"
    yield from (f"    {line}" for line in example_lines(report.examples, format_name))
    if report.line_ends:
        yield (
            f"  replaced {counted(report.line_ends, 'line end')} with a carriage return by LF; --keep-crlf keeps them"
        )
