"""Makes token stores, and looks at them: ``build``, ``convert``, ``download``, ``inspect``, ``verify``.

hornbook corpus build my-texts/ --tokenizer tokenizers/mine --validation 0.02 --output corpora/mine
hornbook corpus inspect corpora/mine
hornbook corpus verify corpora/mine
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.arguments import fraction, natural_number, positive_integer
from hornbook.cli.convert import add_convert_arguments
from hornbook.cli.download import add_download_arguments
from hornbook.cli.inputs import add_input_arguments, read_options, report_faults
from hornbook.cli.progress import token_progress
from hornbook.storage.system import format_bytes

if TYPE_CHECKING:
    from hornbook.data.build import BuildReport
    from hornbook.data.parts import Progress
    from hornbook.data.store import TokenStore

_BAR_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    build = commands.add_parser("build", help="tokenize text into a corpus", description="Tokenize text into a corpus.")
    add_input_arguments(build)
    build.add_argument("--tokenizer", required=True, metavar="PATH", help="a tokenizer.json, or a folder with one")
    build.add_argument("--output", required=True, type=Path, metavar="DIR", help="the corpus, a new folder")
    build.add_argument(
        "--validation",
        type=fraction,
        default=0.0,
        metavar="SHARE",
        help="documents to hold out, chosen by a hash of their text, as in 0.02 (default: none)",
    )
    build.add_argument(
        "--end-of-text",
        choices=("stored", "inserted"),
        default="stored",
        help="end each document with that token in the store, or let readers put it in (default: stored)",
    )
    build.add_argument(
        "--threads", type=positive_integer, metavar="N", help="to read dumps and tokenize with (default: all cores)"
    )
    build.set_defaults(handler=build_command)
    add_download_arguments(commands.add_parser("download", help="fetch a dump of Wikipedia, checked and resumable"))
    add_convert_arguments(commands.add_parser("convert", help="convert others' tokenized files, from and to"))
    inspect = commands.add_parser("inspect", help="show what is in a corpus", description="Show what is in a corpus.")
    inspect.add_argument(
        "--samples", type=natural_number, default=3, metavar="N", help="documents to show (default: 3)"
    )
    inspect.set_defaults(handler=inspect_command)
    verify = commands.add_parser("verify", help="check every byte", description="Check every byte of a corpus.")
    verify.set_defaults(handler=verify_command)
    for command in (inspect, verify):
        command.add_argument("store", metavar="STORE", help="a corpus, a store, or the prefix of a .bin and .idx")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the chosen subcommand; see the handlers."""
    result: dict[str, object] = arguments.handler(arguments)
    return result


def build_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Build a corpus; return its counts."""
    import os

    from hornbook.data.build import BuildOptions, build_corpus
    from hornbook.text.tokenizer import Tokenizer

    if arguments.threads:
        os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # read when the library first tokenizes
    options = BuildOptions(
        validation=arguments.validation, end_of_text=arguments.end_of_text, reading=read_options(arguments)
    )
    tokenizer = Tokenizer.load(arguments.tokenizer)
    started = time.monotonic()
    with token_progress() as show:

        def on_progress(progress: "Progress") -> None:
            show(f"{progress.documents:,} documents, {format_bytes(progress.num_bytes)}", progress.tokens)

        report = build_corpus(arguments.inputs, tokenizer, arguments.output, options, on_progress)
    seconds = time.monotonic() - started
    report_faults(report.faults, report.messages)
    sys.stdout.writelines(f"{line}\n" for line in _build_lines(report, seconds))
    return asdict(report) | {"seconds": round(seconds, 3)}


def inspect_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Show each store of a corpus; return the numbers."""
    from hornbook.data.store import open_store, splits_of

    stores = [open_store(arguments.store, split) for split in splits_of(arguments.store) or ("train",)]
    facts = [_inspect(store, arguments.samples) for store in stores]
    for fact in facts:
        sys.stdout.writelines(f"{line}\n" for line in _inspect_lines(fact))
    return {"stores": facts}


def verify_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Check each store of a corpus; return what was checked."""
    from hornbook.data.store import splits_of
    from hornbook.data.verify import verify_store

    verified = []
    for split in splits_of(arguments.store) or ("train",):
        found = verify_store(arguments.store, split)
        checked = f"{len(found.files)} files by their hashes" if found.files else "its structure (it has no hashes)"
        counts = f"{found.documents:,} documents, {found.tokens:,} tokens"
        sys.stdout.write(f"{found.store}: sound; checked {checked}, {counts}\n")
        verified.append(asdict(found))
    return {"stores": verified}


def _build_lines(report: "BuildReport", seconds: float) -> Iterator[str]:
    done = "is built already, of the same inputs and options" if report.already_built else f"built in {seconds:.1f} s"
    yield f"{report.output} {done}"
    for name, split in report.splits.items():
        size = format_bytes(split.num_bytes)
        yield f"  {name:<10} {split.documents:>12,} documents {split.tokens:>16,} tokens {size:>12} of text"
    if report.empty or report.faults:
        yield f"  left out: {report.empty:,} empty documents, {report.faults:,} unreadable ones"
    if report.skipped:
        yield f"  skipped: {', '.join(f'{count:,} {kind}' for kind, count in sorted(report.skipped.items()))}"


def _inspect(store: "TokenStore", num_samples: int) -> dict[str, Any]:
    from hornbook.data.describe import describe_lengths, samples, tokens_per_byte

    sources = store.manifest.sources if store.manifest else ()
    return {
        "store": str(store.path),
        "documents": store.num_documents,
        "tokens": store.num_tokens,
        "bytes": store.num_bytes,
        "tokens_per_byte": tokens_per_byte(store),
        "vocab_size": store.vocab_size,
        "dtype": store.indexed.dtype.name,
        "end_of_text": store.end_of_text,
        "end_of_text_id": store.end_of_text_id,
        "fingerprint": store.fingerprint,
        "lengths": asdict(describe_lengths(store)),
        "num_sources": len(sources),
        "sources": list(sources[:10]),
        "samples": [asdict(sample) for sample in samples(store, num_samples)],
    }


def _inspect_lines(facts: dict[str, Any]) -> Iterator[str]:
    lengths, sources = facts["lengths"], facts["sources"]
    ratio = "" if facts["tokens_per_byte"] is None else f", {facts['tokens_per_byte']:.3f} tokens a byte"
    size = "bytes not known" if facts["bytes"] is None else f"{facts['bytes']:,} bytes of text"
    token = "" if facts["end_of_text_id"] is None else f" (id {facts['end_of_text_id']})"
    vocabulary = f"vocabulary {facts['vocab_size']:,}" if facts["vocab_size"] else "tokenizer not known"
    yield facts["store"]
    yield f"  {facts['documents']:,} documents, {facts['tokens']:,} tokens, {size}{ratio}"
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
        yield f"  from {facts['num_sources']:,} files: {', '.join(map(_plain, sources[:3]))}" + ", ..." * (
            len(sources) > 3
        )
    for sample in facts["samples"]:
        place = f", {_plain(sample['source'][0])} at byte {sample['source'][1]:,}" if sample["source"] else ""
        yield f"  document {sample['document']:,}{place}"
        yield f"    {_plain(sample['text'])[:100]}"


def _plain(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return "".join(character if character.isprintable() else " " for character in text)
