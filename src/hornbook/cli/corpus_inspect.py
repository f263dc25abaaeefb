"""``hornbook corpus inspect``: show sizes, sources and samples of a corpus, a store or a file of instances.

hornbook corpus inspect corpora/mine --samples 5
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hornbook.cli.arguments import natural_number
from hornbook.cli.table import say
from hornbook.wording import counted

_BAR_WIDTH = 40
_DEFAULT_SAMPLES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``corpus inspect``."""
    parser.add_argument(
        "--samples", type=natural_number, metavar="N", help=f"documents to show (default: {_DEFAULT_SAMPLES})"
    )
    parser.add_argument("store", metavar="STORE", help="corpus, store, or prefix of a .bin and .idx")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Print and return the numbers of each store of a corpus, or of a file of instances."""
    from hornbook.cli.corpus_instances import are_instances, inspect_instances
    from hornbook.corpora.describe import describe_store
    from hornbook.corpora.store import open_store, splits_of
    from hornbook.errors import UserError

    if are_instances(Path(arguments.store)):
        if arguments.samples is not None:
            raise UserError(f"--samples shows documents, but {arguments.store} contains instances; remove it")
        return inspect_instances(Path(arguments.store))
    stores = [open_store(arguments.store, split) for split in splits_of(arguments.store) or ("train",)]
    num_samples = _DEFAULT_SAMPLES if arguments.samples is None else arguments.samples
    facts = [describe_store(store, num_samples) for store in stores]
    for fact in facts:
        say(*_inspect_lines(fact))
    return {"stores": facts}


def _inspect_lines(facts: dict[str, Any]) -> Iterator[str]:
    lengths, sources = facts["lengths"], facts["sources"]
    ratio = "" if facts["tokens_per_byte"] is None else f", {facts['tokens_per_byte']:.3f} tokens per byte"
    size = "bytes not known" if facts["bytes"] is None else f"{facts['bytes']:,} bytes of text"
    token = "" if facts["end_of_text_id"] is None else f" (id {facts['end_of_text_id']})"
    vocabulary = f"vocabulary {facts['vocab_size']:,}" if facts["vocab_size"] else "tokenizer not known"
    yield facts["store"]
    yield f"  {describe_documents(facts['documents'], facts['sentences'])}, {facts['tokens']:,} tokens, {size}{ratio}"
    yield f"  {vocabulary}, {facts['dtype']}, end-of-text {facts['end_of_text']}{token}"
    yield (
        f"  tokens a document: {lengths['shortest']:,} to {lengths['longest']:,}, mean {lengths['mean']:,.0f}, "
        f"median {lengths['median']:,.0f}"
    )
    most = max(row["documents"] for row in lengths["bins"])
    for row in lengths["bins"]:
        bar = "█" * round(_BAR_WIDTH * row["documents"] / most) or "▏" * bool(row["documents"])
        yield f"    {row['start']:>9,} - {row['end'] - 1:<9,} {row['documents']:>11,}  {bar}".rstrip()
    if sources:
        yield f"  from {counted(facts['num_sources'], 'file')}: {', '.join(map(_plain, sources[:3]))}" + ", ..." * (
            len(sources) > 3
        )
    for sample in facts["samples"]:
        file, offset = sample["source"] or (None, 0)
        place = f", {_plain(file)} at {sample['unit']} {offset:,}" if file is not None else ""
        yield f"  document {sample['document']:,}{place}"
        yield f"    {_plain(sample['text'])[:100]}"


def describe_documents(count: int, num_sentences: int | None) -> str:
    """Return the number of documents and, if known, of sentences, as text."""
    documents = counted(count, "document")
    if num_sentences is None:
        return documents
    return f"{documents}, {counted(num_sentences, 'sentence')} ({num_sentences / count:,.1f} a document)"


def _plain(text: str) -> str:
    """Return text without control characters, safe to print on a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
