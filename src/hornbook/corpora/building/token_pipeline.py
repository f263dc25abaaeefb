"""The pipeline from documents to tokens: while one batch is written, the next is tokenized and the one after is read.

    batches.read_batches            filtered documents, 4 MB of text at a time          one thread
      -> tokenize_batches           [5 6 7 | 8 9 | 3], sizes [3 2 1], origins           one thread, and the library's
           -> the writer of parts

`ahead` computes the next item in a thread while the current one is used, so the order, and therefore every byte, is
that of a plain loop, and memory holds two batches per stage.
"""

import re
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Bools, Int64s, Integers
from hornbook.corpora.building.batches import Batch, Candidates
from hornbook.corpora.building.report import Report
from hornbook.corpora.folders import DOCUMENT_ROW, splits_of_share
from hornbook.text.reading import Document

Encode = Callable[[Sequence[str]], list[NDArray[np.int32]]]
"""Returns the ids of each text, see `hornbook.text.tokenizer.Tokenizer.encode_batch`."""

LONG_TEXT: Final = 10_000
"""Minimum number of characters of a text whose tail can be held out."""

T = TypeVar("T")
_PARAGRAPH_END: Final = re.compile(r"\r?\n(?:[^\S\n]*\n)+")
_LINE_END: Final = re.compile(r"\n")


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Tokenized documents.

    Attributes:
        tokens: the concatenated tokens of all sequences, [num_tokens] of the store's dtype.
        sizes: number of tokens of each sequence, int64[num_sequences].
        sequences: number of sequences of each document, int64[num_documents].
        rows: origin of each document, ``DOCUMENT_ROW`` [num_documents].
        numbers: the index of each document among those of the batch, int64[num_documents]; head and tail share one.
    """

    tokens: Integers
    sizes: Int64s
    sequences: Int64s
    rows: NDArray[np.void]
    numbers: Int64s

    def only(self, chosen: Bools) -> "Tokens":
        """Return the documents where ``chosen``, bool[num_documents], is true."""
        if chosen.all():
            return self
        of_sequences = np.repeat(chosen, self.sequences)
        return Tokens(
            tokens=self.tokens[np.repeat(of_sequences, self.sizes)],
            sizes=self.sizes[of_sequences],
            sequences=self.sequences[chosen],
            rows=self.rows[chosen],
            numbers=self.numbers[chosen],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenBatch:
    """A `Batch` with tokens, by split, in place of documents."""

    report: Report
    candidates: Candidates
    splits: dict[str, Tokens]
    is_last: bool


@dataclass(frozen=True, kw_only=True)
class TokenPlan:
    """The settings for tokenizing documents.

    Attributes:
        encode: returns the ids of texts.
        dtype: the dtype of the store, which can represent every id of the vocabulary.
        source_numbers: maps the name of a source to its index in ``documents.npy``.
        validation, validation_tail: share of the documents, or of each long one, for the validation split.
        end_of_text_id: the id stored after each document, or None.
        split_text: splits a text into sequences; None makes each document one sequence.
    """

    encode: Encode
    dtype: np.dtype[Any]
    source_numbers: dict[str, int]
    validation: float = 0.0
    validation_tail: float = 0.0
    end_of_text_id: int | None = None
    split_text: Callable[[str], list[str]] | None = None


def ahead(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield the same items, each computed in a thread while the previous one is used, and raise errors in order."""
    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="hornbook-ahead") as executor:
        waiting = executor.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = executor.submit(next, items, None)
            yield item


def tokenize_batches(batches: Generator[Batch, None, None], plan: TokenPlan) -> Generator[TokenBatch, None, None]:
    """Tokenize the documents of each batch and divide them into splits."""
    with closing(batches):
        for batch in batches:
            yield TokenBatch(
                report=batch.report,
                candidates=batch.candidates,
                splits=_tokenize(batch.documents, plan),
                is_last=batch.is_last,
            )


def _tokenize(kept: Sequence[Document], plan: TokenPlan) -> dict[str, Tokens]:
    documents, held_out, numbers = hold_out(kept, plan.validation, plan.validation_tail)
    texts = [document.text for document in documents]
    pieces = list(map(plan.split_text, texts)) if plan.split_text else [[text] for text in texts]
    ids = plan.encode(list(chain.from_iterable(pieces)))
    sizes = np.fromiter(map(len, ids), np.int64, len(ids))
    tokens = np.concatenate([np.empty(0, dtype=np.int32), *ids], dtype=plan.dtype, casting="unsafe")  # they fit
    del ids
    if plan.end_of_text_id is not None:
        tokens = np.insert(tokens, np.cumsum(sizes), plan.end_of_text_id)
        sizes += 1
    rows = [(plan.source_numbers[each.source], each.offset, each.num_bytes) for each in documents]
    whole = Tokens(
        tokens=tokens,
        sizes=sizes,
        sequences=np.fromiter(map(len, pieces), np.int64, len(pieces)),
        rows=np.array(rows, dtype=DOCUMENT_ROW),
        numbers=numbers,
    )
    chosen = {"train": ~held_out, "validation": held_out}
    return {split: whole.only(chosen[split]) for split in splits_of_share(plan.validation or plan.validation_tail)}


def hold_out(
    documents: Sequence[Document], validation: float = 0.0, validation_tail: float = 0.0
) -> tuple[Sequence[Document], Bools, Int64s]:
    """Hold out a share of the documents, or the tail of each long document, for validation.

    Returns:
        The documents, with long ones possibly divided into head and tail; whether each of them is held out,
        bool[num_documents]; and the index of the given document that each is, or is of, int64[num_documents].
    """
    if validation_tail:
        parts = [divide_tail(document, validation_tail) for document in documents]
        held_out = [number > 0 for divided in parts for number in range(len(divided))]
        numbers = np.repeat(np.arange(len(documents)), np.fromiter(map(len, parts), np.int64, len(parts)))
        return list(chain.from_iterable(parts)), np.array(held_out, dtype=bool), numbers
    chosen = (falls_to_validation(document.text, validation) for document in documents)
    return documents, np.fromiter(chosen, bool, len(documents)), np.arange(len(documents))


def divide_tail(document: Document, share: float) -> list[Document]:
    """Divide a long document into head and tail, which together are its text; any other stays whole.

    The tail begins after the last paragraph end, or else the last line end, that leaves it one to two times ``share``
    of the characters. The document is not divided if there is none, if it has fewer than `LONG_TEXT` characters, or if
    the head or tail would be blank. Both parts have the source and offset of the document.
    """
    text = document.text
    if len(text) < LONG_TEXT:
        return [document]
    first, last = len(text) - int(2 * share * len(text)), len(text) - int(share * len(text))
    for end in (_PARAGRAPH_END, _LINE_END):
        cut = max((match.end() for match in end.finditer(text, first, last)), default=0)
        head, tail = text[:cut], text[cut:]
        if cut and head.strip() and tail.strip():
            num_bytes = len(head.encode())
            return [
                replace(document, text=head, num_bytes=num_bytes),
                replace(document, text=tail, num_bytes=document.num_bytes - num_bytes),
            ]
    return [document]


def falls_to_validation(text: str, fraction: float) -> bool:
    """Return whether a document is for validation: a pure function of its text, by its BLAKE2b hash.

    A document therefore stays in its split when others are added, removed or moved; if the fraction grows, documents
    move only from training to validation; and copies of a text are in the same split.
    """
    if not fraction:
        return False
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    return number < fraction * 2**64
