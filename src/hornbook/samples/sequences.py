"""What an encoder learns from: a sequence of ids with [CLS] and [SEP], of one text or of a pair.

    tokens     [CLS] the cat sat [SEP] on the mat [SEP]        segments    0 0 0 0 0 1 1 1 1        pair_label  0

    PairSequences        next-sentence pairs of a sentence store, other ones each epoch         BERT
    JoinedSequences      all documents end to end, cut where a sequence is full                 RoBERTa, run_mlm
    DocumentSequences    each document by itself, cut where a sequence is full
    LineSequences        each sentence of a sentence store, or each document of another         run_mlm --line_by_line
    StaticInstances      a file of instances, masked when it was made                           `static_instances`

A source answers sample number n, counted since the run began: a function of (seed, n), in any order, so the state of a
loader is one number, as for windows (`hornbook.samples.windows`). What masks the tokens comes after it
(`hornbook.samples.masking`). The price: pairs are found anew at the beginning of each epoch, 0.25 us a pair, and each
has 8 bytes in memory meanwhile; since passes differ by a few pairs and an epoch is of one size, a later epoch leaves
out the last few of its order, or begins it again.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from hornbook.arrays import Int64s, Integers
from hornbook.corpora.store import TokenStore
from hornbook.errors import UserError
from hornbook.samples.hashing import permute
from hornbook.samples.mixture import Provenance
from hornbook.samples.pairs import SPECIAL_TOKENS, PairRules, Sentences, first_sentences, pairs_at
from hornbook.samples.windows import Piece, Windows
from hornbook.text.special_tokens import MaskingTokens

NO_PAIR = -100
"""The label of a sequence that is no pair, which no loss counts."""


class TokenSequence(NamedTuple):
    """One sequence, without padding.

    Attributes:
        tokens: int64[num_tokens], with [CLS] and [SEP]; masked already if there are ``positions``.
        segments: int64[num_tokens], 0 up to the first [SEP], 1 after it.
        pair_label: 0, the second text follows the first; 1, it is another document's; ``NO_PAIR``, there is none.
        positions: int64[num_predictions], where a token is to be predicted, in rising order; None if nothing is masked.
        labels: int64[num_predictions], the ids to be predicted there; None if nothing is masked.
    """

    tokens: Int64s
    segments: Int64s
    pair_label: int = NO_PAIR
    positions: Int64s | None = None
    labels: Int64s | None = None

    def unscored(self) -> "TokenSequence":
        """The same tokens, of which nothing is to be predicted."""
        nothing = np.zeros(0, dtype=np.int64)
        return self._replace(positions=nothing, labels=nothing, pair_label=NO_PAIR)


class SequenceSource(Protocol):
    """Sequences by number, the same for the same number always."""

    @property
    def sequence_length(self) -> int:
        """Tokens that a sequence has at most."""

    @property
    def num_sequences(self) -> int:
        """Sequences in an epoch: sample n is of epoch ``n // num_sequences``."""

    @property
    def fingerprint(self) -> str:
        """A hash of what the sequences depend on, by which a resumed run knows its data."""

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        """The sequences of these samples (each >= 0), in their order."""


@runtime_checkable
class StoredSequences(SequenceSource, Protocol):
    """Sequences of token stores, which know where they are from."""

    def provenance(self, sample: int) -> Provenance:
        """Which tokens of which documents the sequence of a sample is made of, [CLS], [SEP] and masks apart."""


class PairSequences:
    """Next-sentence pairs, drawn anew each epoch by the rules of `hornbook.samples.pairs`.

    Args:
        store: of sentences, two documents or more.
        special: the tokenizer's special tokens.
        rules: how to make pairs; its seed also shuffles them.

    Raises:
        UserError: the store has no sentences, or too few documents, or the sequences are too short for a pair.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, rules: PairRules) -> None:
        _require_sentences(store, "train without pairs")
        self._store, self._special, self._rules = store, special, rules
        self._sentences = sentences_of(store)
        self._tables: dict[int, Int64s] = {}
        self.sequence_length = rules.sequence_length
        try:
            self.num_sequences = len(self.first_sentences(0))
        except UserError as error:
            raise UserError(f"{store.path}: {error}") from error
        self.fingerprint = _fingerprint(store, special, repr(rules))

    def first_sentences(self, epoch: int) -> Int64s:
        """int64[chunks of the epoch]: where they begin, rising; the last two epochs are kept."""
        if epoch not in self._tables:
            while len(self._tables) > 1:
                del self._tables[min(self._tables)]
            self._tables[epoch] = first_sentences(self._sentences, self._rules, epoch)
        return self._tables[epoch]

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        """See ``SequenceSource``."""
        epochs, places = np.divmod(samples, self.num_sequences)
        found: dict[int, TokenSequence] = {}
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            found |= zip(rows.tolist(), self.of_epoch(epoch, places[rows]), strict=True)
        return [found[row] for row in range(len(samples))]

    def of_epoch(self, epoch: int, places: Int64s) -> list[TokenSequence]:
        """The sequences at these places of an epoch's order, which goes round."""
        return [self._join(*pair) for pair in self._pairs(epoch, places)]

    def provenance(self, sample: int) -> Provenance:
        """A and B; see ``StoredSequences``."""
        epoch, place = divmod(sample, self.num_sequences)
        ((a, b, _),) = self._pairs(epoch, np.array([place]))
        return Provenance(0, epoch, [a, b])

    def _pairs(self, epoch: int, places: Int64s) -> Iterator[tuple[Piece, Piece, int]]:
        """A, B and the label at each of these places."""
        table = self.first_sentences(epoch)
        order = permute(places % len(table), size=len(table), seed=self._rules.seed, epoch=epoch)
        pairs = pairs_at(table[order], self._sentences, self._rules, epoch)
        for *spans, label in zip(*(values.tolist() for values in pairs), strict=True):
            yield Piece(*spans[:3]), Piece(*spans[3:]), label

    def _join(self, a: Piece, b: Piece, label: int) -> TokenSequence:
        tokens = np.empty(a.num_tokens + b.num_tokens + SPECIAL_TOKENS, dtype=np.int64)
        middle = a.num_tokens + 1
        tokens[0], tokens[middle], tokens[-1] = self._special.cls, self._special.sep, self._special.sep
        tokens[1:middle] = self._store.read(*a)
        tokens[middle + 1 : -1] = self._store.read(*b)
        segments = np.zeros(len(tokens), dtype=np.int64)
        segments[middle + 1 :] = 1
        return TokenSequence(tokens, segments, label)


class JoinedSequences:
    """All documents end to end with a [SEP] between them, cut every ``sequence_length - 2`` tokens.

    As `hornbook.samples.windows.Windows` cuts, which says what each epoch leaves out. A document that ends with an
    end-of-text token in the store has no [SEP] beside it.

    Args:
        store: any.
        special: the tokenizer's special tokens.
        sequence_length: tokens of each sequence.
        seed: of the order and the cuts.

    Raises:
        UserError: the store has too few tokens for one sequence, or the sequences have no room.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        self._windows = Windows(_Separated(store, special.sep), _room(sequence_length), seed)
        self._special = special
        self.sequence_length = sequence_length
        self.num_sequences = self._windows.num_items
        self.fingerprint = _fingerprint(store, special, f"joined {sequence_length} {seed}")

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        """See ``SequenceSource``."""
        return [framed(tokens[:-1], self._special) for tokens in self._windows.batch(samples).tokens]

    def provenance(self, sample: int) -> Provenance:
        """The parts of all documents that it goes through; see ``StoredSequences``."""
        pieces = self._windows.provenance(sample, with_target=False)
        return Provenance(0, sample // self.num_sequences, pieces)


class _OnePiece(ABC):
    """Sequences each of which is one piece of a document.

    Args:
        store, special, sequence_length, seed: of those that they are made by.
    """

    num_sequences: int

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        self._store, self._special, self._seed = store, special, seed
        self._room = _room(sequence_length)
        self.sequence_length = sequence_length

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        """See ``SequenceSource``."""
        return [framed(self._store.read(*piece), self._special) for piece in self._of_samples(samples)]

    def provenance(self, sample: int) -> Provenance:
        """The one piece; see ``StoredSequences``."""
        return Provenance(0, sample // self.num_sequences, self._of_samples(np.array([sample])))

    def _of_samples(self, samples: Int64s) -> list[Piece]:
        epochs, places = np.divmod(samples, self.num_sequences)
        numbers = permute(places, size=self.num_sequences, seed=self._seed, epoch=epochs)
        return list(map(Piece, *(values.tolist() for values in self._places(numbers))))

    @abstractmethod
    def _places(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Documents, starts and counts of the sequences of these numbers, in the store's order."""


class DocumentSequences(_OnePiece):
    """Every document by itself, cut every ``sequence_length - 2`` tokens; its last sequence has what is left.

    Args:
        store: any; stored end-of-text tokens are left out.
        special: the tokenizer's special tokens.
        sequence_length: tokens of a sequence at most.
        seed: of the order.

    Raises:
        UserError: the sequences have no room.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        super().__init__(store, special, sequence_length=sequence_length, seed=seed)
        self._lengths = np.maximum(store.document_lengths - (store.end_of_text == "stored"), 0)
        self._ends = np.cumsum(-(-self._lengths // self._room))
        self.num_sequences = int(self._ends[-1])
        _refuse_empty(store, self.num_sequences)
        self.fingerprint = _fingerprint(store, special, f"documents {sequence_length} {seed}")

    def _places(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        documents = np.searchsorted(self._ends, numbers, side="right")
        before = self._ends[documents] + -self._lengths[documents] // self._room
        starts = (numbers - before) * self._room
        return documents, starts, np.minimum(self._lengths[documents] - starts, self._room)


class LineSequences(_OnePiece):
    """Every sentence by itself, up to ``sequence_length - 2`` tokens of it.

    Args:
        store: of sentences; stored end-of-text tokens are left out.
        special: the tokenizer's special tokens.
        sequence_length: tokens of a sequence at most; what is longer loses its end.
        seed: of the order.

    Raises:
        UserError: the store has no sentences, or the sequences have no room.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        super().__init__(store, special, sequence_length=sequence_length, seed=seed)
        _require_sentences(store, 'take objective.sequences "documents"')
        self._lines = sentences_of(store)
        self.num_sequences = len(self._lines.offsets)
        self.fingerprint = _fingerprint(store, special, f"lines {sequence_length} {seed}")

    def _places(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        lines = self._lines
        owners = np.searchsorted(lines.first, numbers, side="right") - 1
        begins = lines.tokens_before(numbers)
        counts = np.minimum(lines.tokens_before(numbers + 1) - begins, self._room)
        starts = begins - lines.tokens_before(lines.first[owners])
        return lines.documents[owners], starts, counts


def sentences_of(store: TokenStore) -> Sentences:
    """Where the sentences of a store lie, without empty ones, without stored end-of-text tokens.

    Where there are none of these, it is the store's own index, mapped into memory; else a table of 8 bytes a sentence.

    Raises:
        UserError: nothing is left.
    """
    indexed = store.indexed
    sizes, first = indexed.sizes, indexed.document_index
    has_end = store.end_of_text == "stored"
    if indexed.is_contiguous and not has_end and sizes.min() > 0 and np.diff(first).min() > 0:
        documents = np.arange(store.num_documents)
        end, unit = indexed.tokens.nbytes, indexed.dtype.itemsize
        return Sentences(documents=documents, first=first, offsets=indexed.pointers, end=end, unit=unit)
    lengths = sizes.astype(np.int64)
    if has_end:
        lengths[first[1:][np.diff(first) > 0] - 1] -= 1
    kept_before: Int64s = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths > 0)))
    first = kept_before[first]
    documents = np.flatnonzero(np.diff(first))
    _refuse_empty(store, len(documents))
    lengths = lengths[lengths > 0]
    ends = np.cumsum(lengths)
    return Sentences(
        documents=documents,
        first=np.append(first[documents], len(lengths)),
        offsets=ends - lengths,
        end=int(ends[-1]),
    )


class _Separated:
    """A store whose documents have a separator between them."""

    def __init__(self, store: TokenStore, separator: int) -> None:
        has_end = store.end_of_text == "stored" or (store.end_of_text == "inserted" and store.num_sentences is None)
        self.end_of_text = store.end_of_text if has_end else "inserted"
        self.end_of_text_id = store.end_of_text_id if has_end else separator
        self.num_documents, self.document_lengths = store.num_documents, store.document_lengths
        self.fingerprint, self.read = store.fingerprint, store.read


def framed(text: Sequence[int] | Integers, special: MaskingTokens) -> TokenSequence:
    """A text of one segment with [CLS] before it and [SEP] behind it."""
    tokens = np.empty(len(text) + 2, dtype=np.int64)
    tokens[0], tokens[1:-1], tokens[-1] = special.cls, text, special.sep
    return TokenSequence(tokens, np.zeros(len(tokens), dtype=np.int64))


def _room(sequence_length: int) -> int:
    if sequence_length < 3:
        raise UserError(f"a sequence of [CLS], text and [SEP] takes 3 tokens or more; got {sequence_length}")
    return sequence_length - 2


def _require_sentences(store: TokenStore, instead: str) -> None:
    if store.sequences != "sentences":
        raise UserError(
            f"{store.path}: the store has no sentences; build it with --sequences sentences or lines, or {instead}"
        )


def _refuse_empty(store: TokenStore, count: int) -> None:
    if not count:
        raise UserError(f"{store.path}: the store has no text; build it from text")


def _fingerprint(store: TokenStore, special: MaskingTokens, rules: str) -> str:
    return hashlib.sha256(f"{store.fingerprint}:{special.cls}:{special.sep}:{rules}".encode()).hexdigest()
