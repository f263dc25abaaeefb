"""Trains a tokenizer on the documents that a corpus will train on: the first stop on the way from texts to tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hornbook.corpora.build.token_pipeline import hold_out
from hornbook.errors import UserError
from hornbook.text.documents import read_documents
from hornbook.text.reading import ReadOptions, Tally
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_training import Kind


@dataclass(frozen=True)
class TokenizerReport:
    """A trained tokenizer, and what it was trained on.

    Attributes:
        tokenizer: the tokenizer.
        documents: number of documents that it was trained on.
        held_out: number of documents, or of tails of documents, that were left out for validation.
        tally: what was read, faults included.
    """

    tokenizer: Tokenizer
    documents: int
    held_out: int
    tally: Tally


def train_tokenizer(
    inputs: Sequence[str | Path],
    output: Path | None,
    *,
    vocab_size: int,
    kind: Kind,
    cased: bool,
    validation: float,
    validation_tail: float = 0.0,
    reading: ReadOptions,
    on_notice: Callable[[str], None],
) -> TokenizerReport:
    """Train a tokenizer and save it to the folder ``output``, unless that is None.

    Args:
        inputs: files, folders, globs or names of the hub.
        output: folder for ``tokenizer.json``.
        vocab_size: number of tokens.
        kind: the tokenizer's algorithm.
        cased: keep case and accents; WordPiece alone has a choice.
        validation: share of the documents to leave out, the same ones that a corpus build holds out with this share.
        validation_tail: share of each long document to leave out at its end, as a corpus build does, in place of that.
        reading: how to read the inputs.
        on_notice: called with each notice about the inputs.

    Raises:
        UserError: ``cased`` for another kind, an input is wrong, or ``output`` contains another tokenizer.
        DataError: a document cannot be read.
    """
    if cased and kind != "wordpiece":
        raise UserError(f"--cased applies only to --kind wordpiece; {kind} always keeps case; remove it")
    tally, num_documents, held_out = Tally(), 0, 0
    documents = read_documents(inputs, reading, tally, on_notice)

    def texts() -> Iterator[str]:
        nonlocal num_documents, held_out
        for document in documents:
            parts, chosen = hold_out([document], validation, validation_tail)
            held_out += int(chosen.sum())
            num_documents += int((~chosen).sum())
            yield from (part.text for part, is_held_out in zip(parts, chosen, strict=True) if not is_held_out)

    tokenizer = Tokenizer.train(texts(), vocab_size, kind=kind, lowercase=not cased)
    if output is not None:
        path = output / "tokenizer.json"
        if path.exists() and Tokenizer.load(path).digest != tokenizer.digest:
            raise UserError(f"{path} already contains another tokenizer; choose another --output or delete it")
        tokenizer.save(output)
    return TokenizerReport(tokenizer, num_documents, held_out, tally)
