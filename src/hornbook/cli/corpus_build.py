"""``hornbook corpus build``: tokenize text into a corpus, or resume an interrupted build.

hornbook corpus build my-texts/ --tokenizer tokenizers/mine --validation 0.02 --output corpora/mine
hornbook corpus build wiki.jsonl --tokenizer tokenizers/bert --sequences sentences --output corpora/pairs
hornbook corpus build web/ --min-words 50 --drop-duplicates --drop-near-duplicates 0.8 --decontaminate lambada.jsonl ...
"""

import argparse
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hornbook.cli.arguments import TOKENIZER_HELP, add_declared, declared_values, thread_count
from hornbook.cli.inputs import add_held_out_arguments, add_input_arguments, note, read_options, report_faults
from hornbook.cli.table import say, token_progress
from hornbook.errors import UserError
from hornbook.parallel.launched import collector_paused
from hornbook.storage.system import format_bytes
from hornbook.text.quality.policy import KINDS, QualityOptions, Tolerance
from hornbook.wording import counted, counted_kind

if TYPE_CHECKING:
    from hornbook.corpora.building.builder import BuildReport, Progress

_FLAGS: Final = {
    "languages": "--language",
    "exact_duplicates": "--drop-duplicates",
    "near_duplicates": "--drop-near-duplicates",
}
"""The filters whose option is not named like the field."""
_METAVARS: Final = {
    "min_characters": None,
    "min_words": None,
    "keep_matching": "RE",
    "drop_matching": "RE",
    "languages": "CODE",
    "language_probability": "P",
    "language_from": None,
    "exact_duplicates": None,
    "near_duplicates": "SHARE",
    "decontaminate": "FILE",
    "decontaminate_field": "NAME",
    "decontaminate_words": None,
    "decontaminate_overlap": None,
}
_NEEDS: Final = {
    **dict.fromkeys(("language_probability", "language_from"), "languages"),
    **dict.fromkeys(("decontaminate_field", "decontaminate_words", "decontaminate_overlap"), "decontaminate"),
}
"""The filter that each of these options requires."""


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
        help="unit that is stored as a sequence: documents, for GPT; sentences, for BERT's pairs; "
        "lines, for text with one sentence per line",
    )
    parser.add_argument(
        "--sentence-language",
        metavar="CODE",
        help="language whose rules split sentences, such as de; a language without rules uses those of "
        "a related one, or of English (default: en)",
    )
    parser.add_argument(
        "--end-of-text",
        choices=("stored", "inserted"),
        help="store the end-of-text token after each document, or let readers insert it (default: "
        "stored if the tokenizer has one; inserted with sentences and lines)",
    )
    parser.add_argument(
        "--threads",
        type=thread_count,
        help="threads for tokenizing, and processes for reading dumps (default: all cores)",
    )
    parser.add_argument(
        "--workers",
        type=thread_count,
        default=1,
        help="processes that read, filter and tokenize; the corpus is the same for any number (default: 1)",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="build on the Ray cluster at this address, or local to start one here"
    )
    parser.add_argument(
        "--part", type=_part, metavar="K/N", help="build only part K of N, for corpus merge, as in a job of an array"
    )
    parser.add_argument(
        "--encoder",
        choices=("auto", "tokenizers"),
        default="auto",
        help="tokenizer implementation; auto: tiktoken for inputs over 4 MiB, if it is installed and "
        "gives the same tokens; tokenizers: the tokenizers library",
    )
    add_quality_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Build a corpus, or a part of one; return its counts. Raises UserError if an option does not apply."""
    with collector_paused():
        from hornbook.corpora.building.builder import BuildOptions, build_corpus
        from hornbook.corpora.building.separate import build_part
        from hornbook.text.tokenizer import Tokenizer

    if arguments.threads:
        os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # read when the library first tokenizes
    if arguments.sentence_language and arguments.sequences != "sentences":
        raise UserError(
            "--sentence-language has no effect without --sequences sentences; add it, or remove --sentence-language"
        )
    tolerance = declared_values(arguments, Tolerance)
    if arguments.part and tolerance:
        raise UserError("--allow and --max-dropped have no effect with --part; give them to corpus merge")
    if arguments.ray and arguments.threads:
        raise UserError("--threads has no effect with --ray, where each task uses one core; remove it")
    reading = read_options(arguments)
    options = BuildOptions(
        validation=arguments.validation,
        validation_tail=arguments.validation_tail,
        end_of_text=arguments.end_of_text,
        sequences=arguments.sequences,
        language=arguments.sentence_language or "en",
        workers=arguments.workers,
        ray=arguments.ray,
        encoder=arguments.encoder,
        threads=reading.processes,
        reading=reading,
        quality=quality_options(arguments),
        tolerance=Tolerance(**tolerance),
    )
    with collector_paused():  # it has 100,000 objects
        tokenizer = Tokenizer.load(arguments.tokenizer)
    started = time.monotonic()
    with token_progress() as show:

        def on_progress(progress: "Progress") -> None:
            show(counted(progress.documents, "document"), progress.tokens, progress.read, progress.total)

        if arguments.part:
            part = build_part(arguments.inputs, tokenizer, arguments.output, options, arguments.part, on_progress, note)
            rest = f"{counted(part.missing, 'slice')} to go" if part.missing else "hornbook corpus merge is next"
            say(f"{part.output}: part {'/'.join(map(str, arguments.part))} is built; {rest}")
            return asdict(part)
        report = build_corpus(arguments.inputs, tokenizer, arguments.output, options, on_progress, note)
    seconds = time.monotonic() - started
    report_faults(report.faults, report.messages)
    say(*report_lines(report, seconds, arguments.format))
    return asdict(report) | {"seconds": round(seconds, 3)}


def add_quality_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the filters and the checks of the result."""
    group = parser.add_argument_group("filters", "a dropped document counts for the first filter that drops it")
    for name, metavar in _METAVARS.items():
        more = {"metavar": metavar} if metavar else {}
        add_declared(group, QualityOptions, name, flag=_FLAGS.get(name), **more)
    add_tolerance_arguments(parser)


def add_tolerance_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the checks of the result."""
    outcome = parser.add_argument_group("checks of the result", "a suspicious corpus is an error")
    add_declared(outcome, Tolerance, "max_dropped", metavar="SHARE")
    add_declared(outcome, Tolerance, "allow", choices=KINDS, metavar="KIND")


def _part(text: str) -> tuple[int, int]:
    """Parse K/N. Raises ArgumentTypeError."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no part; expected K/N with K from 1 to N, such as 3/64")
    return int(match[1]), int(match[2])


def quality_options(arguments: argparse.Namespace) -> QualityOptions:
    """Return the filter options; raise UserError if one requires another that is missing."""
    given = declared_values(arguments, QualityOptions)
    for name, needed in _NEEDS.items():
        if name in given and needed not in given:
            option, other = f"--{name.replace('_', '-')}", _FLAGS.get(needed, f"--{needed}")
            raise UserError(f"{option} has no effect without {other}; add it, or remove {option}")
    return QualityOptions(**given)


def report_lines(report: "BuildReport", seconds: float, format_name: str) -> Iterator[str]:
    """Yield the lines that describe the result of a build."""
    from hornbook.corpora.building.report import example_lines

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
