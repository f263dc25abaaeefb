"""Tokenized documents, independent of the file format, and lazy transformations of them.

    documents               [5 6 7 0] [8 9 0] [1 2 3 4 0]                 0 is the end-of-text token
    with_end_of_text        [5 6 7] [8 9] [1 2 3 4]                       "inserted"; "stored" adds missing tokens
    cut_stream, length 3    [5 6 7] [0 8 9] [0 1 2] [3 4 0]               the documents concatenated, then cut
    crop, length 3          [5 6 7]         [1 2 3]                       the beginning of each that is long enough
    split_at_end_of_text    [5 6 7 0] [8 9 0] [1 2 3 4 0]                 concatenated, then cut after each 0

Each is a function from ``Documents`` to ``Documents``; memory holds nothing until iteration, then one document.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from hornbook.arrays import Integers
from hornbook.errors import DataError, UserError
from hornbook.text.tokenizer import Tokenizer

TOKEN: Final = np.dtype(np.int32)
_PIECE: Final = 1 << 22
EndOfText = Literal["stored", "inserted", "absent"]


class TokenDocument(NamedTuple):
    """A tokenized document and its origin.

    Attributes:
        tokens: [num_tokens] of an integer dtype, read-only.
        file: index of the file in ``Documents.files``.
        offset: offset of the document in the file, in bytes or rows.
        num_bytes: bytes of text in UTF-8; None if unknown.
        sizes: [num_sentences], number of tokens of each sentence; None if unknown.
    """

    tokens: Integers
    file: int
    offset: int
    num_bytes: int | None = None
    sizes: Integers | None = None

    def with_part(self, tokens: Integers) -> "TokenDocument":
        """Return a part of the document with the same origin, without bytes and sentences."""
        return TokenDocument(tokens, self.file, self.offset)


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """The documents of some files, in order; each iteration reads them again.

    Attributes:
        files: the names of the files.
        read: starts an iteration; token ids are from 0 to 2**31 - 1.
        end_of_text: ``"stored"``: each document ends with the end-of-text token; ``"inserted"``: none does, but readers
            insert it; ``"absent"``: there is none; None: unknown.
        end_of_text_id: the id of the end-of-text token; None if unknown.
        vocab_size: number of ids; None if unknown.
        dtype: the dtype of the tokens in the files; None if the format has none.
        tokenizer: the tokenizer of the tokens; None if unknown.
        split: the split of the corpus; None if unknown.
        sequences: ``"sentences"`` if documents have ``sizes``.
        reading: the options with which a store's text was read, from its manifest.
    """

    files: tuple[str, ...]
    read: Callable[[], Iterator[TokenDocument]] = field(repr=False)
    end_of_text: EndOfText | None = None
    end_of_text_id: int | None = None
    vocab_size: int | None = None
    dtype: np.dtype[Any] | None = None
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    split: str | None = None
    sequences: Literal["documents", "sentences"] = "documents"
    reading: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[TokenDocument]:
        return self.read()


def as_tokens(values: Integers, where: str) -> Integers:
    """Return the values unchanged. Raises DataError, with ``where`` as prefix, unless all are from 0 to 2**31 - 1."""
    if values.size:
        smallest, largest = int(values.min()), int(values.max())
        if smallest < 0 or largest > np.iinfo(TOKEN).max:
            wrong = smallest if smallest < 0 else largest
            raise DataError(f"{where} has {wrong}, which is not a token id; expected 0 to {np.iinfo(TOKEN).max}")
    return values


def with_tokenizer(documents: Documents, tokenizer: Tokenizer) -> Documents:
    """Return the documents with a known tokenizer, whose vocabulary is checked during iteration.

    Raises:
        UserError: the documents have another tokenizer.
        DataError: during iteration, a token is outside the vocabulary.
    """
    if documents.tokenizer and documents.tokenizer.digest != tokenizer.digest:
        raise UserError(
            f"{documents.files[0]} was built with a tokenizer other than that of `tokenizer`; remove `tokenizer`"
        )

    def read() -> Iterator[TokenDocument]:
        for document in documents:
            if len(document.tokens) and (largest := int(document.tokens.max())) >= tokenizer.vocab_size:
                where = f"{documents.files[document.file]}: the document at byte {document.offset}"
                raise DataError(
                    f"{where} has token {largest}, but the tokenizer has 0 to {tokenizer.vocab_size - 1}; use the "
                    "tokenizer that made the tokens"
                )
            yield document

    return replace(
        documents,
        read=read,
        tokenizer=tokenizer,
        vocab_size=tokenizer.vocab_size,
        end_of_text_id=tokenizer.end_of_text_id,
    )


def with_end_of_text(documents: Documents, end_of_text: EndOfText) -> Documents:
    """Return the documents with the end-of-text token at the end of each (``"stored"``) or of none (``"inserted"``).

    Looks only at the last token of a document and adds or removes at most one, which belongs to the last sentence. With
    ``"absent"``, documents are not changed.
    """
    if end_of_text == "absent":
        return replace(documents, end_of_text=end_of_text)
    token = documents.end_of_text_id
    assert token is not None, "checked by the caller"
    ending = np.array([token], dtype=TOKEN)

    def read() -> Iterator[TokenDocument]:
        for document in documents:
            tokens, more = document.tokens, 0
            has_it = len(tokens) > 0 and int(tokens[-1]) == token
            if end_of_text == "stored" and not has_it:
                tokens, more = np.concatenate((tokens.astype(TOKEN), ending)), 1
            elif end_of_text == "inserted" and has_it:
                tokens, more = tokens[:-1], -1
            yield document._replace(tokens=tokens, sizes=_with_longer_end(document.sizes, more))

    return replace(documents, read=read, end_of_text=end_of_text)


def split_at_end_of_text(documents: Documents) -> Documents:
    """Return the documents concatenated and cut after each end-of-text token."""
    token = documents.end_of_text_id
    assert token is not None, "checked by the caller"

    def read() -> Iterator[TokenDocument]:
        begun: list[TokenDocument] = []
        # in pieces, so that the search in a stream of billions of tokens needs little memory
        for sequence in (
            document.with_part(document.tokens[start : start + _PIECE])
            for document in documents
            for start in range(0, len(document.tokens), _PIECE)
        ):
            start = 0
            for end in (np.flatnonzero(sequence.tokens == token) + 1).tolist():
                yield _join([*begun, sequence.with_part(sequence.tokens[start:end])])
                begun, start = [], end
            if start < len(sequence.tokens):
                begun.append(sequence.with_part(sequence.tokens[start:]))
        if begun:
            yield _join(begun)

    return replace(documents, read=read, end_of_text=None, sequences="documents")


@dataclass(kw_only=True)
class Counts:
    """Number of documents or instances, and of their tokens, in the most recent iteration."""

    items: int = 0
    tokens: int = 0


def cut_stream(documents: Documents, length: int, stride: int, left_out: Counts) -> Documents:
    """Return sequences of ``length`` tokens of the concatenated documents, one every ``stride`` tokens.

    The origin of a sequence is that of the document of its first token. Tokens that no sequence covers, at the end or,
    if the stride exceeds the length, between sequences, count as left out.
    """

    def read() -> Iterator[TokenDocument]:
        left_out.items = left_out.tokens = 0
        held: list[TokenDocument] = []
        num_tokens = num_held = num_sequences = skip = 0
        for document in documents:
            num_tokens += len(document.tokens)
            num_held += len(document.tokens)
            held += [document] if len(document.tokens) else []
            if num_held < skip + length:
                continue
            whole, ends = _join(held).tokens, np.cumsum([len(part.tokens) for part in held])
            for start in range(skip, num_held - length + 1, stride):
                part = held[int(np.searchsorted(ends, start, side="right"))]
                yield part.with_part(whole[start : start + length])
                num_sequences += 1
            start += stride
            held, skip, num_held = _rest_after(held, start), max(0, start - num_held), max(0, num_held - start)
        covered = length + (num_sequences - 1) * min(stride, length) if num_sequences else 0
        left_out.tokens = num_tokens - covered

    return replace(documents, read=read, end_of_text=None, sequences="documents")


def crop(documents: Documents, length: int, left_out: Counts) -> Documents:
    """Return the first ``length`` tokens of each document that is at least that long, as system A's encoder does."""

    def read() -> Iterator[TokenDocument]:
        left_out.items = left_out.tokens = 0
        for document in documents:
            if len(document.tokens) < length:
                left_out.items += 1
                left_out.tokens += len(document.tokens)
                continue
            left_out.tokens += len(document.tokens) - length
            yield document.with_part(document.tokens[:length])

    return replace(documents, read=read, end_of_text=None, sequences="documents")


def _with_longer_end(sizes: Integers | None, more: int) -> Integers | None:
    """Return the sizes with ``more`` added to the last sentence, the last nonempty one if negative; [more] if empty."""
    if sizes is None or not more:
        return sizes
    some = np.array(sizes if len(sizes) else [0], dtype=np.int64)
    some[-1 if more > 0 else np.flatnonzero(some)[-1]] += more
    return some


def _join(parts: list[TokenDocument]) -> TokenDocument:
    """Return the parts concatenated, with the origin of the first."""
    return parts[0].with_part(np.concatenate([part.tokens for part in parts])) if len(parts) > 1 else parts[0]


def _rest_after(parts: list[TokenDocument], start: int) -> list[TokenDocument]:
    """Return the parts without their first ``start`` tokens, and without empty parts."""
    left = []
    for part in parts:
        if start < len(part.tokens):
            left.append(part.with_part(part.tokens[start:]))
        start = max(0, start - len(part.tokens))
    return left
