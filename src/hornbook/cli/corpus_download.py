"""``hornbook corpus download``: download Wikipedia dumps.

hornbook corpus download wikipedia --language en --date 20260101 --output dumps
hornbook corpus build dumps/enwiki-20260101-*.xml.bz2 --from wikipedia --tokenizer tokenizers/gpt2 --output corpora/en
"""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from hornbook.cli.table import say

_SECONDS_BETWEEN_LINES = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", choices=("wikipedia",), metavar="wikipedia", help="dump to download")
    parser.add_argument("--language", required=True, metavar="CODE", help="language code of the wiki: en, de, simple")
    parser.add_argument("--date", required=True, metavar="YYYYMMDD", help="date of the dump, such as 20260101")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder for the dump")
    parser.add_argument("--mirror", metavar="URL", help="server of the dumps (default: https://dumps.wikimedia.org)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Download a dump; return its path, size and verified hash."""
    from hornbook.storage.system import format_bytes
    from hornbook.wikipedia.download import MIRROR, download_dump

    last = time.monotonic()

    def show(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last < (0.5 if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES):
            return
        last = time.monotonic()
        share = f" of {format_bytes(total)}" if total else ""
        sys.stderr.write(f"{format_bytes(done)}{share}" + ("\r" if sys.stderr.isatty() else "\n"))

    mirror = arguments.mirror or MIRROR
    found = download_dump(arguments.language, arguments.date, arguments.output, mirror=mirror, on_progress=show)
    done = f"{format_bytes(found.fetched)} fetched" if found.fetched else "already downloaded"
    say(f"{found.path}: {format_bytes(found.size)}, {done}, {found.algorithm} as published")
    return asdict(found)
