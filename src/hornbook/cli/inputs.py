"""The arguments by which commands are given text: what to read, and how.

hornbook corpus build texts/ more.jsonl.gz --suffix .txt --exclude 'draft*' --on-error skip ...
"""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hornbook.text.documents import ReadOptions


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare INPUT... and the options that say how to read it."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a file, folder or glob, plain or compressed (.gz, .bz2, .xz, .zst); - for standard input",
    )
    parser.add_argument(
        "--format",
        choices=("auto", "text", "jsonl"),
        default="auto",
        help="text: one document a file; jsonl: one a line; auto: jsonl for .jsonl, .ndjson and .json (default: auto)",
    )
    parser.add_argument("--field", default="text", metavar="NAME", help="where JSONL has the text (default: text)")
    parser.add_argument(
        "--suffix", action="append", default=[], metavar=".EXT", help="take only such files out of folders; repeatable"
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out files and folders of such a name, as in 'test*'; repeatable",
    )
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="at a document that cannot be read: stop, or skip and count it (default: stop)",
    )


def read_options(arguments: argparse.Namespace) -> "ReadOptions":
    """The options that ``add_input_arguments`` declared."""
    from hornbook.text.documents import ReadOptions

    return ReadOptions(
        format=arguments.format,
        field=arguments.field,
        suffixes=tuple(arguments.suffix),
        exclude=tuple(arguments.exclude),
        on_error=arguments.on_error,
    )


def report_faults(faults: int, messages: list[str]) -> None:
    """Tell on standard error what was skipped."""
    if faults:
        sys.stderr.write(f"skipped {faults} documents that could not be read:\n")
        sys.stderr.writelines(f"  {message}\n" for message in messages)
    if faults > len(messages):
        sys.stderr.write(f"  ... and {faults - len(messages)} more\n")
