"""Training a tokenizer on the training documents of a corpus, without those that the corpus holds out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hornbook.corpora.building.token_pipeline import hold_out
from hornbook.errors import UserError
from hornbook.storage import refuse_file
from hornbook.text.documents import read_documents
from hornbook.text.reading import ReadOptions, Tally
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_training import Kind


@dataclass(frozen=True)
class TokenizerReport:
    """A trained tokenizer with the counts of its training documents.

    Attributes:
        tokenizer: the tokenizer.
        documents: number of documents it was trained on.
        held_out: number of documents, or of tails of documents, held out for validation.
        tally: the counts of reading.
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
        cased: keep case and accents; only for WordPiece, since the other kinds always do.
        validation: share of the documents to hold out, the same ones as a corpus build with this share.
        validation_tail: share of each long document to hold out at its end, the same as a corpus build.
        reading: how to read the inputs.
        on_notice: called with each notice about the inputs.

    Raises:
        UserError: ``cased`` for another kind, an input is wrong, or ``output`` contains another tokenizer.
        DataError: a document is unreadable.
    """
    if cased and kind != "wordpiece":
        raise UserError(f"`cased` applies only to `kind='wordpiece'`; {kind} always keeps case; remove it")
    if output is not None:
        refuse_file(output, writes=True)
    tally, num_documents, held_out = Tally(), 0, 0
    documents = read_documents(inputs, reading, tally, on_notice)

    def texts() -> Iterator[str]:
        nonlocal num_documents, held_out
        for document in documents:
            parts, chosen, _ = hold_out([document], validation, validation_tail)
            held_out += int(chosen.sum())
            num_documents += int((~chosen).sum())
            yield from (part.text for part, is_held_out in zip(parts, chosen, strict=True) if not is_held_out)

    tokenizer = Tokenizer.train(texts(), vocab_size, kind=kind, lowercase=not cased)
    if output is not None:
        path = output / "tokenizer.json"
        if path.exists() and Tokenizer.load(path).digest != tokenizer.digest:
            raise UserError(
                f"{path} already contains another tokenizer; use it as it is, choose another `output`, or remove it"
            )
        tokenizer.save(output)
    return TokenizerReport(tokenizer, num_documents, held_out, tally)
