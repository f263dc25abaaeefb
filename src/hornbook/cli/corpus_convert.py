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

from hornbook.cli.arguments import TOKENIZER_HELP, add_declared, declared_values
from hornbook.cli.table import say, token_progress
from hornbook.interop.convert import DOCUMENT_FORMATS, DOCUMENT_SOURCES, INSTANCE_FORMATS, INSTANCE_SOURCES
from hornbook.interop.convert.conversion import ConvertOptions, ConvertReport, Declared, convert
from hornbook.wording import counted, counted_kind

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
    sources, targets = (*DOCUMENT_SOURCES, *INSTANCE_SOURCES), (*DOCUMENT_FORMATS, *INSTANCE_FORMATS)
    add_declared(parser, Declared, "source_format", flag="--from", choices=sources, metavar="FORMAT")
    add_declared(parser, Declared, "target_format", flag="--to", choices=targets, metavar="FORMAT")
    add_declared(parser, Declared, "verify")
    add_declared(parser, Declared, "split", metavar="NAME")
    add_declared(parser, Declared, "sequence_length")
    add_declared(parser, Declared, "records_per_file")
    documents, instances = parser.add_argument_group("documents"), parser.add_argument_group("instances")
    documents.add_argument(
        "--tokenizer", metavar="PATH", help=f"tokenizer of the tokens, required for a new store: {TOKENIZER_HELP}"
    )
    add_declared(documents, Declared, "end_of_text")
    add_declared(documents, Declared, "end_of_text_id", metavar="ID")
    for name in ("split_at_end_of_text", "stride", "crop"):
        add_declared(documents, Declared, name)
    add_declared(instances, Declared, "max_predictions", metavar="K")
    add_declared(instances, Declared, "pad_position")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Convert the source and return the counts."""
    from hornbook.text.tokenizer import Tokenizer

    tokenizer = None if arguments.tokenizer is None else Tokenizer.load(arguments.tokenizer)
    options = ConvertOptions(**declared_values(arguments, Declared), tokenizer=tokenizer)
    started = time.monotonic()
    with token_progress() as show:

        def on_progress(items: int, tokens: int) -> None:
            show(f"{items:,} converted", tokens)

        report = convert(arguments.source, arguments.target, options, on_progress)
    seconds = time.monotonic() - started
    say(*_lines(report, seconds))
    return asdict(report) | {"seconds": round(seconds, 3)}


def _lines(report: ConvertReport, seconds: float) -> Iterator[str]:
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
