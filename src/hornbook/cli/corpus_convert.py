"""``hornbook corpus convert``: convert tokenized files between formats.

hornbook corpus convert wiki.pkl stores/wiki --to store --tokenizer gpt2 --end-of-text stored --verify
hornbook corpus convert corpora/mine tfrecords --to tfrecord --split train --sequence-length 129 --records-per-file 1000
hornbook corpus convert bert.tfrecord bert-arrow --to bert-arrow
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import TOKENIZER_HELP, natural_number, positive_integer
from hornbook.cli.table import say, token_progress
from hornbook.interop.convert import DOCUMENT_FORMATS, DOCUMENT_SOURCES, INSTANCE_FORMATS, INSTANCE_SOURCES
from hornbook.wording import counted, counted_kind

if TYPE_CHECKING:
    from hornbook.interop.convert.conversion import ConvertReport

_DESCRIPTION = f"""Convert others' tokenized files, from and to any format of a row:

  documents    {", ".join(DOCUMENT_FORMATS)}
  instances    {", ".join(INSTANCE_FORMATS)} (BERT's masked sentence pairs)

Only read: {", ".join(DOCUMENT_SOURCES[len(DOCUMENT_FORMATS) :])} (one stream of tokens) and
{", ".join(INSTANCE_SOURCES[len(INSTANCE_FORMATS) :])} (several instances a record).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``corpus convert``."""
    parser.description = _DESCRIPTION
    parser.add_argument("source", type=Path, metavar="SOURCE", help="file, folder, or prefix of a .bin and .idx")
    parser.add_argument("target", type=Path, metavar="TARGET", help="new file or folder; must not exist")
    parser.add_argument(
        "--from",
        dest="source_format",
        choices=(*DOCUMENT_SOURCES, *INSTANCE_SOURCES),
        metavar="FORMAT",
        help="format of the source (default: by its content)",
    )
    parser.add_argument(
        "--to",
        dest="target_format",
        choices=(*DOCUMENT_FORMATS, *INSTANCE_FORMATS),
        metavar="FORMAT",
        help="format of the target (default: by its name)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="verify the hashes of a store before converting, and compare source and target afterwards",
    )
    parser.add_argument("--split", metavar="NAME", help="split of the source, or of the new store")
    parser.add_argument(
        "--sequence-length",
        type=positive_integer,
        help="documents: concatenate and split into sequences of N tokens; instances: pad to N tokens",
    )
    parser.add_argument(
        "--records-per-file", type=positive_integer, help="write a folder of TFRecord files with N records each"
    )
    _add_document_arguments(parser.add_argument_group("documents"))
    _add_instance_arguments(parser.add_argument_group("instances"))


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Convert the source and return the counts."""
    from dataclasses import fields

    from hornbook.interop.convert.conversion import ConvertOptions, convert
    from hornbook.text.tokenizer import Tokenizer

    values = {field.name: getattr(arguments, field.name) for field in fields(ConvertOptions)}
    if arguments.tokenizer is not None:
        values["tokenizer"] = Tokenizer.load(arguments.tokenizer)
    started = time.monotonic()
    with token_progress() as show:

        def on_progress(items: int, tokens: int) -> None:
            show(f"{items:,} converted", tokens)

        report = convert(arguments.source, arguments.target, ConvertOptions(**values), on_progress)
    seconds = time.monotonic() - started
    say(*_lines(report, seconds))
    return asdict(report) | {"seconds": round(seconds, 3)}


def _add_document_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--tokenizer", metavar="PATH", help=f"tokenizer of the tokens, required for a new store: {TOKENIZER_HELP}"
    )
    group.add_argument(
        "--end-of-text",
        choices=("stored", "inserted"),
        help="whether documents of the target end with the end-of-text token (stored) or not (inserted) "
        "(default: as in the source)",
    )
    group.add_argument(
        "--end-of-text-id",
        type=natural_number,
        metavar="ID",
        help="id of the end-of-text token (default: that of the tokenizer or store)",
    )
    group.add_argument(
        "--split-at-end-of-text",
        action="store_true",
        help="read the source as one stream of tokens and end a document at each end-of-text token",
    )
    group.add_argument(
        "--stride",
        type=positive_integer,
        help="tokens between the starts of two sequences (default: the sequence length)",
    )
    group.add_argument(
        "--crop",
        action="store_true",
        help="keep only the first --sequence-length tokens of each document that has as many",
    )


def _add_instance_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--max-predictions",
        type=positive_integer,
        metavar="K",
        help="predictions to pad to (default: as in the source)",
    )
    group.add_argument(
        "--pad-position",
        type=natural_number,
        help="position id of unused slots, for bert-tfrecord-remasked (default: 384)",
    )


def _lines(report: "ConvertReport", seconds: float) -> Iterator[str]:
    items = counted_kind(report.items, report.kind)
    yield f"{report.target} made in {seconds:.1f} s: {items}, {report.tokens:,} tokens"
    yield f"  {report.target_format} from {report.source_format}, {report.source}"
    if report.joined_sentences:
        yield "  the sentences of each document are joined"
    if report.left_out_documents or report.left_out_tokens:
        shorter = f"{counted(report.left_out_documents, 'document')} too short, " if report.left_out_documents else ""
        yield f"  left out: {shorter}{report.left_out_tokens:,} tokens in all"
    if report.verified:
        yield "  verified: source and target are equal"
