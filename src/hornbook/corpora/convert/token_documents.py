"""Documents of tokens, whatever file they are in; and what may be made of them on the way to another.

    documents          [5 6 7 0] [8 9 0] [1 2 3 4 0]                      0 is the end-of-text token
    with_end_of_text   "inserted": [5 6 7] [8 9] [1 2 3 4]                "stored" puts it back where it is missing
    sequences of 3     [5 6 7] [0 8 9] [0 1 2] [3 4 0]                    the documents laid end to end, and cut
    cropped to 3       [5 6 7]         [1 2 3]                            the beginning of each that has as many
    split              [5 6 7 0] [8 9 0] [1 2 3 4 0]                      laid end to end, and cut after each 0

Each is a function from ``Documents`` to ``Documents``, which hold no token until they are iterated, and then one
document.
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
    """Tokens [number of tokens] of an integer dtype, not to be written to; and where they are from.

    ``file`` is the number of the file in ``Documents.files``, ``offset`` what is before the document there, in bytes or
    in rows. ``num_bytes`` of text in UTF-8 and ``sizes``, the tokens of each of its sentences [number of sentences],
    are None where nobody knows.
    """

    tokens: Integers
    file: int
    offset: int
    num_bytes: int | None = None
    sizes: Integers | None = None

    def with_part(self, tokens: Integers) -> "TokenDocument":
        """Some of its tokens, in its place; of their bytes and sentences nothing is known."""
        return TokenDocument(tokens, self.file, self.offset)


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """The documents of some files, in their order; each iteration reads them again.

    Attributes:
        files: the files that they are from.
        read: begins an iteration; the tokens it gives are ids from 0, below 2**31.
        end_of_text: ``"stored"``, each document ends with that token; ``"inserted"``, none does, but readers put it in;
            ``"absent"``, they do not; None: not known.
        end_of_text_id: its id, None where it is not known.
        vocab_size: number of ids, None where it is not known.
        dtype: of the tokens in the files, None where the files leave it open.
        tokenizer: what made the tokens, None where it is not known.
        split: the split of a corpus that they are, None where it is not known.
        sequences: whether they know their sentences.
        reading: how a store's text was read, as its manifest has it.
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
    """Return the values if all are token ids, 0 to 2**31 - 1. Raises DataError, which begins with ``where``."""
    if values.size:
        smallest, largest = int(values.min()), int(values.max())
        if smallest < 0 or largest > np.iinfo(TOKEN).max:
            wrong = smallest if smallest < 0 else largest
            raise DataError(f"{where} holds {wrong}, which is no token id; expected 0 to {np.iinfo(TOKEN).max}")
    return values


def with_tokenizer(documents: Documents, tokenizer: Tokenizer) -> Documents:
    """The documents of a source that does not say what made its tokens.

    Raises:
        UserError: it does say, and it was another tokenizer.
        DataError: while iterating, a token is outside the vocabulary.
    """
    if documents.tokenizer and documents.tokenizer.digest != tokenizer.digest:
        raise UserError(
            f"{documents.files[0]} was made with another tokenizer than the one given; leave out --tokenizer"
        )

    def read() -> Iterator[TokenDocument]:
        for document in documents:
            if len(document.tokens) and (largest := int(document.tokens.max())) >= tokenizer.vocab_size:
                place = f"{documents.files[document.file]}: the document at byte {document.offset}"
                raise DataError(f"{place} holds token {largest}; the tokenizer has 0 to {tokenizer.vocab_size - 1}")
            yield document

    return replace(
        documents,
        read=read,
        tokenizer=tokenizer,
        vocab_size=tokenizer.vocab_size,
        end_of_text_id=tokenizer.end_of_text_id,
    )


def with_end_of_text(documents: Documents, end_of_text: EndOfText) -> Documents:
    """The documents with the end-of-text token at the end of each (``"stored"``), or of none (``"inserted"``).

    Only the last token of a document is looked at, and at most one is added or taken away. Of sentences it is part of
    the last. Where it is to be ``"absent"``, documents stay as they are.
    """
    if end_of_text == "absent":
        return replace(documents, end_of_text=end_of_text)
    token = documents.end_of_text_id
    assert token is not None, "the caller knows the end-of-text token"
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
    """Cut the documents, taken as one stream, behind each end-of-text token."""
    token = documents.end_of_text_id
    assert token is not None, "the caller knows the end-of-text token"

    def read() -> Iterator[TokenDocument]:
        begun: list[TokenDocument] = []
        # in pieces, so that looking for a token in a stream of billions takes little memory
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
class LeftOut:
    """What a cut left out in the iteration that began last."""

    documents: int = 0
    tokens: int = 0


def cut_stream(documents: Documents, length: int, stride: int, left_out: LeftOut) -> Documents:
    """Sequences of ``length`` tokens of the documents laid end to end, one every ``stride`` tokens.

    A sequence is said to be where its first token's document is. What none covers, at the end of the last document or
    between two where the stride is larger than the length, counts as left out.
    """

    def read() -> Iterator[TokenDocument]:
        left_out.documents = left_out.tokens = 0
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
            held, skip, num_held = _behind(held, start), max(0, start - num_held), max(0, num_held - start)
        covered = length + (num_sequences - 1) * min(stride, length) if num_sequences else 0
        left_out.tokens = num_tokens - covered

    return replace(documents, read=read, end_of_text=None, sequences="documents")


def crop(documents: Documents, length: int, left_out: LeftOut) -> Documents:
    """The first ``length`` tokens of each document that has as many, as system A's encoder keeps them."""

    def read() -> Iterator[TokenDocument]:
        left_out.documents = left_out.tokens = 0
        for document in documents:
            if len(document.tokens) < length:
                left_out.documents += 1
                left_out.tokens += len(document.tokens)
                continue
            left_out.tokens += len(document.tokens) - length
            yield document.with_part(document.tokens[:length])

    return replace(documents, read=read, end_of_text=None, sequences="documents")


def _with_longer_end(sizes: Integers | None, more: int) -> Integers | None:
    """The sizes of sentences the last of which has so many more tokens; a sentence begins where there is none."""
    if sizes is None or not more:
        return sizes
    some = np.array(sizes if len(sizes) else [0], dtype=np.int64)
    some[-1 if more > 0 else np.flatnonzero(some)[-1]] += more
    return some


def _join(parts: list[TokenDocument]) -> TokenDocument:
    """One document of parts, the place of the first."""
    return parts[0].with_part(np.concatenate([part.tokens for part in parts])) if len(parts) > 1 else parts[0]


def _behind(parts: list[TokenDocument], start: int) -> list[TokenDocument]:
    """What is left of parts behind their first ``start`` tokens; none that is empty."""
    left = []
    for part in parts:
        if start < len(part.tokens):
            left.append(part.with_part(part.tokens[start:]))
        start = max(0, start - len(part.tokens))
    return left
