"""Cut documents into training examples: windows of one endless, circular stream of tokens.

    documents   [5 6 7] [8 9]                         end-of-text is 0, sequence_length T is 3
    stream       5 6 7 0 8 9 0 (5 6 7 ...             L = 7 tokens, the end joined to the beginning
    windows        [6 7 0 8]  [8 9 0 5]               T + 1 tokens each, T of them targets; neighbours share one
    documents       0 0 1 1    0 0 1 1                an end-of-text token opens the document that it precedes

``Windows`` maps a sample number n, counted from the start of the run, to a window by the epoch of n, its position in
that epoch's order (`hornbook.samples.hashing`) and the epoch's shift of all window starts. The window is a function of
(seed, n), so the state of a data loader is the number n. Windows run across documents, as in GPT-2 and Megatron-LM: no
padding, and every token is equally likely. The price: a window may begin in the middle of a document, and each epoch
leaves out L mod T tokens, different ones in each epoch because of the shift.

``EvaluationWindows`` reads the same stream once, in order, after an initial end-of-text token.

End-of-text tokens are in the store ("stored"), added here ("inserted"), or not used ("absent").
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Int64s
from hornbook.errors import DataError, UserError
from hornbook.samples.hashing import Purpose, mix64, permute

NOT_SCORED = -100  # the target that losses ignore, as in torch's cross_entropy


class TokenSource(Protocol):
    """What windows need of a token store: `hornbook.corpora.store.TokenStore` or synthetic tokens."""

    @property
    def num_documents(self) -> int:
        """How many documents there are."""

    @property
    def document_lengths(self) -> Int64s:
        """int64[num_documents], the tokens of each document, including a stored end-of-text token."""

    @property
    def end_of_text(self) -> str:
        """``"stored"``, ``"inserted"`` or ``"absent"``."""

    @property
    def end_of_text_id(self) -> int | None:
        """The id of the end-of-text token; None only where it is absent."""

    @property
    def fingerprint(self) -> str:
        """A hash of the contents, by which a resumed run recognizes its data."""

    def read(self, document: int, start: int, count: int, /) -> NDArray[Any]:
        """Return tokens ``start .. start + count - 1`` of one document, of any integer dtype."""


class Piece(NamedTuple):
    """Tokens ``start .. start + num_tokens - 1`` of document number ``document`` of the store."""

    document: int
    start: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """T + 1 consecutive tokens: the first T are inputs, the last T their targets.

    Attributes:
        tokens: int64[..., T+1].
        documents: int64[..., T+1], the token's document, numbered from 0 within the window.
    """

    tokens: Int64s
    documents: Int64s


@dataclass(frozen=True, kw_only=True)
class EvaluationWindow:
    """T inputs and their targets.

    Attributes:
        tokens: int64[T].
        targets: int64[T], `NOT_SCORED` where nothing is predicted.
        documents: int64[T], the input token's document, numbered from 0 within the window.
    """

    tokens: Int64s
    targets: Int64s
    documents: Int64s


def announce(source: TokenSource, pieces: Iterable[tuple[int, int, int]]) -> None:
    """Let a source that fetches its tokens begin with these (document, start, count), which are read next, in order."""
    if (will_read := getattr(source, "will_read", None)) is not None:
        will_read(pieces)


class Stream:
    """The documents of a source as a circular sequence of tokens, with an end-of-text token after each document.

    Holds 8 bytes per document in memory (its start); tokens are read on demand.

    Raises:
        DataError: the source uses end-of-text tokens but has no id for them.
    """

    def __init__(self, source: TokenSource) -> None:
        if source.end_of_text != "absent" and source.end_of_text_id is None:
            raise DataError(
                f"the store's end-of-text tokens are {source.end_of_text}, but it does not state their id: "
                "rebuild it with a tokenizer, or declare end-of-text absent"
            )
        self._source = source
        self._will_read = getattr(source, "will_read", None)
        self.has_end_of_text = source.end_of_text != "absent"
        self.end_of_text_id = source.end_of_text_id or 0  # if absent, 0 fills positions that are not scored
        self._num_inserted = int(source.end_of_text == "inserted")
        self._starts = np.zeros(source.num_documents + 1, dtype=np.int64)
        np.cumsum(source.document_lengths + self._num_inserted, out=self._starts[1:])
        self.length = int(self._starts[-1])

    def read(self, starts: Int64s, count: int) -> Window:
        """Read ``count`` tokens from each position in ``starts`` (0 <= start < length): int64[len(starts), count]."""
        tokens = np.empty((len(starts), count), dtype=np.int64)
        if self._will_read is not None:
            self._will_read(piece for start in starts.tolist() for piece in self.pieces(start, count))
        opens = np.zeros((len(starts), count + 1), dtype=np.int64)  # 1 where a document begins, also one past the end
        for row, start in enumerate(starts.tolist()):
            filled = 0
            for document, offset, taken, at_end in self._spans(start, count):
                own = taken - at_end * self._num_inserted
                if own:
                    tokens[row, filled : filled + own] = self._source.read(document, offset, own)
                if own < taken:
                    tokens[row, filled + own] = self.end_of_text_id
                filled += taken
                if at_end:
                    opens[row, filled - self.has_end_of_text] = 1
        documents = np.cumsum(opens[:, :count], axis=1)
        return Window(tokens=tokens, documents=documents - documents[:, :1])

    def pieces(self, start: int, count: int) -> list[Piece]:
        """Return the parts of documents that `read` would read; inserted end-of-text tokens belong to none."""
        owned = (
            Piece(document, offset, taken - at_end * self._num_inserted)
            for document, offset, taken, at_end in self._spans(start, count)
        )
        return [piece for piece in owned if piece.num_tokens]

    def _spans(self, start: int, count: int) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (document, offset in it, number of stream tokens, whether they reach its end) of each document read."""
        document = int(self._starts.searchsorted(start, side="right")) - 1
        while count > 0:
            end = int(self._starts[document + 1])
            taken = min(end - start, count)
            if taken:
                yield document, start - int(self._starts[document]), taken, start + taken == end
            count -= taken
            document = (document + 1) % (len(self._starts) - 1)
            start = int(self._starts[document])


class Windows:
    """Training samples: sample n is a window of ``sequence_length + 1`` tokens, a pure function of (seed, n).

    An epoch has ``num_items = L // T`` windows, whose targets are distinct tokens of the stream of L tokens. Epoch e
    starts its windows at ``(hash(seed, e) + i * T) mod L`` and orders them by `permute`.

    Raises:
        UserError: the stream has fewer than ``sequence_length + 1`` tokens.
        DataError: see `Stream`.
    """

    def __init__(self, source: TokenSource, sequence_length: int, seed: int) -> None:
        assert sequence_length >= 1, f"sequence_length {sequence_length} is not positive"
        self._stream = Stream(source)
        self._seed = seed
        self.sequence_length = sequence_length
        if self._stream.length < sequence_length + 1:
            raise UserError(
                f"the store has {self._stream.length} tokens (end-of-text included), but one sample needs "
                f"{sequence_length + 1}: add text, or shorten data.sequence_length"
            )
        self.num_items = self._stream.length // sequence_length

    def batch(self, samples: Int64s) -> Window:
        """Return the windows of B samples: int64[B, T+1]."""
        return self._stream.read(self._starts(samples), self.sequence_length + 1)

    def provenance(self, sample: int, *, with_target: bool = True) -> list[Piece]:
        """Return the tokens of documents that a sample reads, in order; inserted end-of-text tokens belong to none.

        ``with_target=False`` leaves out the last token, which is only a target.
        """
        start = int(self._starts(np.array([sample]))[0])
        return self._stream.pieces(start, self.sequence_length + with_target)

    def _starts(self, samples: Int64s) -> Int64s:
        """Return the position in the stream at which each sample begins."""
        assert samples.min() >= 0, "samples are numbered from 0"
        length = self._stream.length
        epochs, indices = np.divmod(samples, self.num_items)
        shifts = (mix64(self._seed, Purpose.SHIFT, epochs) % np.uint64(length)).astype(np.int64)
        order = permute(indices, size=self.num_items, seed=self._seed, epoch=epochs)
        return (shifts + order * self.sequence_length) % length


class EvaluationWindows:
    """The whole stream once, in store order, cut into windows of ``sequence_length`` targets.

        stream      0 5 6 7 0 8 9 0            (an initial end-of-text token, then each document and its end-of-text)
        tokens     [0 5 6] [7 0 8] [9 0 0]     T = 3
        targets    [5 6 7] [0 8 9] [0 . .]     . is NOT_SCORED, here padding

    Every token of every document is a target exactly once, and each document's first token is predicted from an
    end-of-text token. A target's context begins with its window: T tokens at most, one token at a window's start. With
    an ``overlap``, each window but the first begins with that many tokens that the previous window has already scored,
    so targets have more than ``overlap`` tokens of context, for T / (T - overlap) times the computation.

    With ``score_end_of_text=False`` only the documents' own tokens are targets (for bits per byte: an end-of-text token
    has no bytes); with True the end of each document counts too, as in the training loss. In a store without
    end-of-text tokens, the very first token is only context.

    Raises:
        UserError: the store is empty.
        DataError: see `Stream`.
    """

    def __init__(self, source: TokenSource, sequence_length: int, *, score_end_of_text: bool, overlap: int = 0) -> None:
        assert 0 <= overlap < sequence_length, f"overlap {overlap} of windows of {sequence_length}"
        self._stream = Stream(source)
        self._score_end_of_text = score_end_of_text
        self._num_targets = self._stream.length - int(not self._stream.has_end_of_text)
        if self._num_targets < 1:
            raise UserError("the store has no token to score: use a store with at least one document of text")
        self.sequence_length = sequence_length
        self._stride = sequence_length - overlap
        self.num_items = 1 + -(-max(0, self._num_targets - sequence_length) // self._stride)

    def window(self, index: int) -> EvaluationWindow:
        """Return window ``index``; past the last, all targets are NOT_SCORED, so that ranks may run in step."""
        length, first = self.sequence_length, index * self._stride
        count = min(max(self._num_targets - first, 0), length) if index < self.num_items else 0
        tokens = np.full(length, self._stream.end_of_text_id, dtype=np.int64)
        targets = np.full(length, NOT_SCORED, dtype=np.int64)
        documents = np.zeros(length, dtype=np.int64)
        if count:
            # In the circular stream, the token before the first document is the last document's end-of-text.
            start = (first - self._stream.has_end_of_text) % self._stream.length
            window = self._stream.read(np.array([start]), count + 1)
            tokens[:count], targets[:count] = window.tokens[0, :-1], window.tokens[0, 1:]
            documents[:count] = window.documents[0, :-1]
            documents[count:] = window.documents[0, -1] + 1
        if index > 0:
            targets[: length - self._stride] = NOT_SCORED
        if not self._score_end_of_text and self._stream.has_end_of_text:
            targets[targets == self._stream.end_of_text_id] = NOT_SCORED
        return EvaluationWindow(tokens=tokens, targets=targets, documents=documents)


class DocumentWindows:
    """Training samples: sample n is the beginning of a document, T + 1 tokens, a pure function of (seed, n).

    ::

        documents   [5 6 7 8 9] [3 4] [1 2 7 7]      sequence_length T is 3
        windows      5 6 7 8           1 2 7 7       [3 4] is too short

    Every token's context is the whole text before it. The price: the rest of each document and all short documents are
    unused. No window contains end-of-text tokens.

    An epoch has ``num_items`` windows, one for each document that is long enough, in the order of `permute`.

    Raises:
        UserError: no document has ``sequence_length + 1`` tokens.
    """

    def __init__(self, source: TokenSource, sequence_length: int, seed: int) -> None:
        self._documents = long_documents(source, sequence_length)
        self._source, self._seed, self.sequence_length = source, seed, sequence_length
        self.num_items = len(self._documents)

    def batch(self, samples: Int64s) -> Window:
        """Return the windows of B samples: int64[B, T+1]."""
        return read_beginnings(self._source, self._chosen(samples), self.sequence_length)

    def provenance(self, sample: int, *, with_target: bool = True) -> list[Piece]:
        """Return the tokens of the document that a sample reads; ``with_target=False`` leaves out the last one."""
        (document,) = self._chosen(np.array([sample])).tolist()
        return [Piece(document, 0, self.sequence_length + with_target)]

    def _chosen(self, samples: Int64s) -> Int64s:
        assert samples.min() >= 0, "samples are numbered from 0"
        epochs, indices = np.divmod(samples, self.num_items)
        return self._documents[permute(indices, size=self.num_items, seed=self._seed, epoch=epochs)]


class EvaluationDocumentWindows:
    """The beginning of each document that is long enough, in store order; all targets are scored.

    Raises:
        UserError: see `DocumentWindows`.
    """

    def __init__(self, source: TokenSource, sequence_length: int) -> None:
        self._documents = long_documents(source, sequence_length)
        self._source, self.sequence_length = source, sequence_length
        self.num_items = len(self._documents)

    def window(self, index: int) -> EvaluationWindow:
        """Return window ``index``; past the last, nothing is scored, so that ranks may run in step."""
        is_there = index < self.num_items
        window = read_beginnings(self._source, self._documents[[index if is_there else 0]], self.sequence_length)
        tokens = window.tokens[0]
        targets = tokens[1:] if is_there else np.full_like(tokens[1:], NOT_SCORED)
        return EvaluationWindow(tokens=tokens[:-1], targets=targets, documents=window.documents[0, :-1])


def long_documents(source: TokenSource, sequence_length: int) -> Int64s:
    """Return the numbers of the documents with more than ``sequence_length`` tokens of text, ascending.

    Raises:
        UserError: there are none.
    """
    lengths = source.document_lengths - (source.end_of_text == "stored")
    found = np.flatnonzero(lengths > sequence_length)
    if not len(found):
        raise UserError(
            f'data.windows = "documents" needs {sequence_length + 1:,} tokens per document, but the longest has '
            f"{max(int(lengths.max(initial=0)), 0):,}: lower data.sequence_length, or use longer documents"
        )
    return found


def read_beginnings(source: TokenSource, documents: Int64s, sequence_length: int) -> Window:
    """Return the first ``sequence_length + 1`` tokens of ``documents`` [B]: int64[B, T+1]."""
    announce(source, ((document, 0, sequence_length + 1) for document in documents.tolist()))
    tokens = np.stack([source.read(document, 0, sequence_length + 1) for document in documents.tolist()])
    return Window(tokens=tokens.astype(np.int64), documents=np.zeros(tokens.shape, dtype=np.int64))
