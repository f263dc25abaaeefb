"""The arguments for input text: what to read, and how.

hornbook corpus build texts/ more.jsonl.gz --suffix .txt --exclude 'draft*' --on-error skip ...
hornbook corpus build enwiki-20260101-pages-articles-multistream.xml.bz2 --from wikipedia --lists drop ...
hornbook corpus build 'hf:HuggingFaceFW/fineweb/sample/10BT/*.parquet' ...
"""

import argparse
import sys

from hornbook.cli.arguments import add_declared, declared_values, fraction, tail_fraction
from hornbook.cli.table import say
from hornbook.errors import UserError
from hornbook.text.reading import CleanOptions, ReadOptions
from hornbook.wording import counted

_CLEANING = {"headings": ("wikipedia",), "lists": ("wikipedia",), "titles": ("wikipedia", "wikiextractor")}
"""Parts of articles that can be dropped, and the formats that distinguish them."""

_FORMATS = {
    "auto": "by file extension: jsonl for .jsonl, .ndjson, .json, csv, tsv, parquet, arrow, warc, else text (default)",
    "text": "a file",
    "lines": "a line",
    "blank-lines": "the text between blank lines",
    "wikitext": "an article of WikiText's files",
    "jsonl": "a line",
    "csv": "a row, whose fields may be quoted",
    "tsv": "a row, whose fields are never quoted",
    "parquet": "a row",
    "arrow": "a row, also of folders written by save_to_disk",
    "warc": "a page of a web archive (.warc, .wet)",
    "wikipedia": "an article of a dump (.xml, .xml.bz2)",
    "wikiextractor": "a <doc> of WikiExtractor's output",
}


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare INPUT... and the options for reading it."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="file, folder or glob, plain or compressed (.gz, .bz2, .xz, .zst); - for standard input; "
        "hf:OWNER/NAME or hf:OWNER/NAME@REVISION for a data set on the Hugging Face hub",
    )
    parser.add_argument(
        "--from",
        "--format",
        dest="format",
        choices=tuple(_FORMATS),
        default="auto",
        metavar="KIND",
        help=f"input format, and what a document is; {'; '.join(f'{name}: {what}' for name, what in _FORMATS.items())}",
    )
    for name in ("field", "split", "config"):
        add_declared(parser, ReadOptions, name, metavar="NAME")
    add_declared(parser, ReadOptions, "suffixes", flag="--suffix", metavar=".EXT")
    add_declared(parser, ReadOptions, "exclude", metavar="PATTERN")
    add_declared(parser, ReadOptions, "on_error")
    add_declared(parser, ReadOptions, "keep_crlf")
    for part, formats in _CLEANING.items():
        parser.add_argument(
            f"--{part}",
            choices=("keep", "drop"),
            help=f"keep or drop the {part} of articles; with --from {' or '.join(formats)} (default: keep)",
        )


def read_options(arguments: argparse.Namespace) -> ReadOptions:
    """Return the options of ``add_input_arguments``; raise UserError if one does not apply to the format."""
    from hornbook.storage.system import usable_cores

    cleaning = {part: getattr(arguments, part) for part in _CLEANING if getattr(arguments, part)}
    for part in cleaning:
        if arguments.format not in _CLEANING[part]:
            expected = " or ".join(f"--from {name}" for name in _CLEANING[part])
            raise UserError(f"--{part} does not apply to --from {arguments.format}; expected {expected}")
    processes = getattr(arguments, "threads", None) or usable_cores()
    given = declared_values(arguments, ReadOptions)
    return ReadOptions(**given, cleaning=CleanOptions(**cleaning), processes=processes)


def add_held_out_arguments(parser: argparse.ArgumentParser, *, does: str) -> None:
    """Declare ``--validation`` and ``--validation-tail``, which exclude each other; ``does`` as in "hold out"."""
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument(
        "--validation",
        type=fraction,
        default=0.0,
        metavar="SHARE",
        help=f"{does} this share of the documents, chosen by a hash of their text, such as 0.02 (default: 0)",
    )
    held_out.add_argument(
        "--validation-tail",
        type=tail_fraction,
        default=0.0,
        metavar="SHARE",
        help=f"{does} this share of the end of each text of at least 10,000 characters instead of whole "
        "documents; cut at the end of a paragraph or line; at most 0.25",
    )


def note(line: str) -> None:
    """Write a note to standard error."""
    say(f"hornbook: {line}", error=True)


def report_faults(faults: int, messages: list[str]) -> None:
    """Report skipped documents on standard error."""
    if faults:
        sys.stderr.write(f"skipped {counted(faults, 'unreadable document')}:\n")
        say(*(f"  {message}" for message in messages), error=True)
    if faults > len(messages):
        sys.stderr.write(f"  ... and {faults - len(messages)} more\n")
