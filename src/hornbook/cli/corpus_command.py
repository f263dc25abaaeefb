"""``hornbook corpus``: build, convert and inspect token stores; the shorter subcommands.

hornbook corpus download wikipedia --language en --date 20260101 --output dumps
hornbook corpus build dumps/enwiki-20260101-*.xml.bz2 --from wikipedia --tokenizer tokenizers/gpt2 --output corpora/en
hornbook corpus inspect corpora/en --samples 5
hornbook corpus verify corpora/en
hornbook corpus which runs/mine --step 1200 --sample 9599 --full
"""

import argparse
import importlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hornbook.cli.arguments import CommandParser, natural_number, positive_integer
from hornbook.cli.table import say
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.run.provenance import TracedSample


SUBCOMMANDS: Final = {
    "build": "tokenize text into a corpus",
    "merge": "join the parts of a corpus that was built in parts",
    "download": "download a Wikipedia dump",
    "convert": "convert tokenized files between formats",
    "instances": "write masked sentence pairs for BERT",
    "inspect": "show sizes, sources and samples of a corpus",
    "verify": "verify the checksums of all files",
    "which": "show the documents that a step of a run was trained on",
}
"""Help text of each subcommand; those not in ``_HERE`` are modules ``corpus_<subcommand>``, imported on demand."""

_SECONDS_BETWEEN_LINES = 30.0
_WIDEST_BAR = 40
_BEFORE_BAR = 41  # columns of a row of the histogram
_DEFAULT_SAMPLES = 3
_SHOWN_CHARACTERS = 100
_PAIRS = {None: "", 0: "; the second text follows the first", 1: "; the second text is another document's"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands; one in a module of its own declares its arguments when it is selected."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, line in SUBCOMMANDS.items():
        command = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        assert isinstance(command, CommandParser), "subparsers have the class of their parser"
        if name in _HERE:
            declare, handler = _HERE[name]
            declare(command)
            command.set_defaults(handler=handler)
        else:
            command.module = f"hornbook.cli.corpus_{name}"


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the selected subcommand and return its result."""
    module = importlib.import_module(f"hornbook.cli.corpus_{arguments.subcommand}")
    result: dict[str, object] = module.run(arguments)
    return result


def _add_download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", choices=("wikipedia",), metavar="wikipedia", help="dump to download")
    parser.add_argument("--language", required=True, metavar="CODE", help="language code of the wiki: en, de, simple")
    parser.add_argument("--date", required=True, metavar="YYYYMMDD", help="date of the dump, such as 20260101")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder for the dump")
    parser.add_argument("--mirror", metavar="URL", help="server of the dumps (default: https://dumps.wikimedia.org)")


def download_command(arguments: argparse.Namespace) -> dict[str, object]:
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


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=natural_number, help=f"documents to show (default: {_DEFAULT_SAMPLES})")
    parser.add_argument("store", metavar="STORE", help="corpus, store (also by URL), or prefix of a .bin and .idx")


def inspect_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print and return the numbers of each store of a corpus, or of a file of instances."""
    from hornbook.cli.corpus_instances import are_instances, inspect_instances
    from hornbook.corpora.folders import splits_of
    from hornbook.corpora.inspection import describe_store
    from hornbook.corpora.store import folder_of, open_store
    from hornbook.errors import UserError

    if are_instances(Path(arguments.store)):
        if arguments.samples is not None:
            raise UserError(f"--samples shows documents, but {arguments.store} contains instances; remove it")
        return inspect_instances(Path(arguments.store))
    splits = splits_of(folder_of(arguments.store)) or ("train",)
    stores = [open_store(arguments.store, split) for split in splits]
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
    room = min(_WIDEST_BAR, max(1, shutil.get_terminal_size().columns - _BEFORE_BAR))
    for row in lengths["bins"]:
        bar = "█" * round(room * row["documents"] / most) or "▏" * bool(row["documents"])
        yield f"    {row['start']:>9,} - {row['end'] - 1:<9,} {row['documents']:>11,}  {bar}".rstrip()
    if sources:
        yield f"  from {counted(facts['num_sources'], 'file')}: {', '.join(map(_plain, sources[:3]))}" + ", ..." * (
            len(sources) > 3
        )
    for sample in facts["samples"]:
        file, offset = sample["source"] or (None, 0)
        place = f", {_plain(file)} at {sample['unit']} {offset:,}" if file is not None else ""
        yield f"  document {sample['document']:,}{place}"
        yield f"    {' '.join(_plain(sample['text']).split())[:100]}"


def describe_documents(count: int, num_sentences: int | None) -> str:
    """Return the number of documents and, if known, of sentences, as text."""
    documents = counted(count, "document")
    if num_sentences is None:
        return documents
    return f"{documents}, {counted(num_sentences, 'sentence')} ({num_sentences / count:,.1f} a document)"


def _plain(text: str) -> str:
    """Replace control characters by blanks."""
    return "".join(character if character.isprintable() else " " for character in text)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="corpus, store (also by URL), or prefix of a .bin and .idx")


def verify_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Verify each store of a corpus, and return what was checked."""
    from hornbook.corpora.folders import BUILD, read_record, splits_of
    from hornbook.corpora.inspection import verify_store
    from hornbook.corpora.store import folder_of

    folder = folder_of(arguments.store)
    if (folder / BUILD).exists():
        read_record(folder)  # raises DataError if it is damaged
    verified = []
    for split in splits_of(folder) or ("train",):
        found = verify_store(arguments.store, split)
        hashed = f"{counted(len(found.files), 'file')} by their hashes"
        checked = hashed if found.files else "its structure (it has no hashes)"
        counts = f"{describe_documents(found.documents, found.sentences)}, {found.tokens:,} tokens"
        say(f"{found.store}: sound; checked {checked}, {counts}")
        verified.append(asdict(found))
    return {"stores": verified}


def _add_which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--step", required=True, type=positive_integer, help="step, counted from 1, as in metrics.jsonl"
    )
    parser.add_argument("--sample", type=natural_number, metavar="K", help="only the sample with this number")
    parser.add_argument("--full", action="store_true", help="print whole texts (default: their beginnings)")


def which_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print and return the samples of a step."""
    from hornbook.run.provenance import trace_step

    samples = []
    for sample in trace_step(arguments.run, arguments.step, arguments.sample):
        sys.stdout.writelines(f"{line}\n" for line in _lines(sample, arguments.full))
        samples.append(asdict(sample))
    return {"run": str(arguments.run), "step": arguments.step, "samples": samples}


def _lines(sample: "TracedSample", full: bool) -> Iterator[str]:
    from hornbook.run.provenance import TracedSequence
    from hornbook.wording import one_line

    sequence = sample if isinstance(sample, TracedSequence) else None
    record = f", record {sequence.record:,}" if sequence and sequence.record is not None else ""
    yield f"sample {sample.sample:,}: epoch {sample.epoch} of {one_line(sample.store)}{record}"
    for piece in sample.pieces:
        place = f", {one_line(piece.file)} at {piece.unit} {piece.offset:,}" if piece.file is not None else ""
        tokens = f"tokens {piece.start:,} to {piece.start + piece.num_tokens - 1:,}"
        yield f"  document {piece.document:,}, {tokens}{place}"
        if piece.url is not None:
            languages = f" ({one_line(piece.languages)})" if piece.languages else ""
            yield f"  page {one_line(piece.url)}{languages}"
        yield from _text(piece.text, piece.tokens, full)
    if sequence:
        counts = f"{len(sequence.tokens):,} tokens, {len(sequence.positions):,} to predict"
        yield f"  {counts}{_PAIRS[sequence.pair_label]}"
        labels = dict(zip(sequence.positions, sequence.labels, strict=True))
        ids = (f"[{token}→{labels[n]}]" if n in labels else token for n, token in enumerate(sequence.tokens))
        yield from _text(sequence.text, ids, full)


def _text(text: str | None, ids: Iterable[object], full: bool) -> list[str]:
    """Return a text, or the ids if it is None, as lines that are safe to print on a terminal."""
    from hornbook.wording import one_line, visible

    text = " ".join(map(str, ids)) if text is None else text
    if full:
        return [f"    {line}" for line in visible(text).splitlines()]
    return [f"    {one_line(text[:_SHOWN_CHARACTERS])}{'...' * (len(text) > _SHOWN_CHARACTERS)}"]


_HERE: Final = {
    "download": (_add_download, download_command),
    "inspect": (_add_inspect, inspect_command),
    "verify": (_add_verify, verify_command),
    "which": (_add_which, which_command),
}
