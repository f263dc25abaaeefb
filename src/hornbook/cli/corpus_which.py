"""``hornbook corpus which``: show the documents and texts that a step of a run was trained on.

hornbook corpus which runs/mine --step 1200
hornbook corpus which runs/mine --step 1200 --sample 9599 --full
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import natural_number, positive_integer

if TYPE_CHECKING:
    from hornbook.run.provenance import TracedSample

_SHOWN_CHARACTERS = 100
_PAIRS = {None: "", 0: "; the second text follows the first", 1: "; the second text is another document's"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--step", required=True, type=positive_integer, metavar="N", help="step, counted from 1, as in metrics.jsonl"
    )
    parser.add_argument("--sample", type=natural_number, metavar="K", help="only the sample with this number")
    parser.add_argument("--full", action="store_true", help="print whole texts (default: their beginnings)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
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
