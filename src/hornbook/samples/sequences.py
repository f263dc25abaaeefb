"""Sequences for encoders: token ids with [CLS] and [SEP], of one text or of a pair.

    tokens     [CLS] the cat sat [SEP] on the mat [SEP]        segments    0 0 0 0 0 1 1 1 1        pair_label  0

    PairSequences        next-sentence pairs of a sentence store, new ones each epoch           BERT
    JoinedSequences      all documents concatenated, cut at the sequence length                 RoBERTa, run_mlm
    DocumentSequences    each document by itself, cut at the sequence length
    LineSequences        each sentence of a sentence store                                      run_mlm --line_by_line
    InstanceSource       instances that another system cut, and often masked                    `instances`

A source maps a sample number n, counted from the start of the run, to a sequence: a function of (seed, n), in any
order, so the state of a loader is one number, as for windows (`hornbook.samples.windows`). Masking is a separate step
(`hornbook.samples.masking`). The price: pairs are recomputed at the start of each epoch, at 0.25 us and 8 bytes of
memory per pair; and since the number of pairs varies slightly between passes but an epoch has a fixed size, a later
epoch leaves out the last few of its pairs, or repeats its first few.
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
from hornbook.samples.windows import Piece, Windows, announce
from hornbook.text.special_tokens import MaskingTokens

NO_PAIR = -100
"""The label of a sequence that is not a pair; losses ignore it."""


class TokenSequence(NamedTuple):
    """One sequence, without padding.

    Attributes:
        tokens: int64[num_tokens], with [CLS] and [SEP]; already masked if ``positions`` is set.
        segments: int64[num_tokens], 0 up to the first [SEP], 1 after it.
        pair_label: 0 if the second text follows the first, 1 if it is from another document, ``NO_PAIR`` for one text.
        positions: int64[num_predictions], positions of the predicted tokens, ascending; None if nothing is masked.
        labels: int64[num_predictions], their original ids; None if nothing is masked.
    """

    tokens: Int64s
    segments: Int64s
    pair_label: int = NO_PAIR
    positions: Int64s | None = None
    labels: Int64s | None = None

    def unscored(self) -> "TokenSequence":
        """Return the same tokens with nothing to predict."""
        nothing = np.zeros(0, dtype=np.int64)
        return self._replace(positions=nothing, labels=nothing, pair_label=NO_PAIR)


class SequenceSource(Protocol):
    """Sequences by sample number; the same number always has the same sequence."""

    @property
    def sequence_length(self) -> int:
        """The most tokens per sequence."""

    @property
    def num_sequences(self) -> int:
        """Sequences per epoch: sample n is in epoch ``n // num_sequences``."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that determines the sequences, by which a resumed run recognizes its data."""

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        """Return the sequences of these samples (each >= 0), in their order."""


@runtime_checkable
class StoredSequences(SequenceSource, Protocol):
    """Sequences of token stores, which can be traced to their documents."""

    def provenance(self, sample: int) -> Provenance:
        """Return the documents' tokens in the sequence of a sample, ignoring [CLS], [SEP] and masks."""


class PairSequences:
    """Next-sentence pairs, drawn anew each epoch by the rules of `hornbook.samples.pairs`.

    Args:
        store: a store of sentences with at least two documents.
        special: the tokenizer's special tokens.
        rules: how to make pairs; its seed also shuffles them.

    Raises:
        UserError: the store has no sentences, or too few documents, or the sequences are too short for a pair.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, rules: PairRules) -> None:
        _require_sentences(store, "train without pairs by `objective.name='mlm'`")
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
        """Return the first sentence of each chunk of an epoch, int64, ascending; caches the last two epochs."""
        if epoch not in self._tables:
            while len(self._tables) > 1:
                del self._tables[min(self._tables)]
            self._tables[epoch] = first_sentences(self._sentences, self._rules, epoch)
        return self._tables[epoch]

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        epochs, indices = np.divmod(samples, self.num_sequences)
        found: dict[int, TokenSequence] = {}
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            found |= zip(rows.tolist(), self.of_epoch(epoch, indices[rows]), strict=True)
        return [found[row] for row in range(len(samples))]

    def of_epoch(self, epoch: int, indices: Int64s) -> list[TokenSequence]:
        """Return the sequences at these indices of an epoch's order, modulo its length."""
        pairs = list(self._pairs(epoch, indices))
        announce(self._store, (piece for a, b, _ in pairs for piece in (a, b)))
        return [self._join(*pair) for pair in pairs]

    def provenance(self, sample: int) -> Provenance:
        """Return A and B; see ``StoredSequences``."""
        epoch, index = divmod(sample, self.num_sequences)
        ((a, b, _),) = self._pairs(epoch, np.array([index]))
        return Provenance(0, epoch, [a, b])

    def _pairs(self, epoch: int, indices: Int64s) -> Iterator[tuple[Piece, Piece, int]]:
        """Yield A, B and the label at each of these indices."""
        table = self.first_sentences(epoch)
        order = permute(indices % len(table), size=len(table), seed=self._rules.seed, epoch=epoch)
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
    """All documents concatenated with a [SEP] between them, cut every ``sequence_length - 2`` tokens.

    They are cut as in `hornbook.samples.windows.Windows`, whose docstring says what each epoch leaves out. A document
    that ends with a stored end-of-text token has no [SEP] after it.

    Args:
        store: any token store.
        special: the tokenizer's special tokens.
        sequence_length: tokens of each sequence.
        seed: seed of the order and the cuts.

    Raises:
        UserError: the store has too few tokens for one sequence, or the sequences have no room for text.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        self._windows = Windows(_Separated(store, special.sep), _room(sequence_length), seed)
        self._special = special
        self.sequence_length = sequence_length
        self.num_sequences = self._windows.num_items
        self.fingerprint = _fingerprint(store, special, f"joined {sequence_length} {seed}")

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        return [framed(tokens[:-1], self._special) for tokens in self._windows.batch(samples).tokens]

    def provenance(self, sample: int) -> Provenance:
        """Return the parts of its documents; see ``StoredSequences``."""
        pieces = self._windows.provenance(sample, with_target=False)
        return Provenance(0, sample // self.num_sequences, pieces)


class _OnePiece(ABC):
    """Base class of sequences that are one piece of a document each.

    Args:
        store, special, sequence_length, seed: see the subclasses.
    """

    num_sequences: int

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        self._store, self._special, self._seed = store, special, seed
        self._room = _room(sequence_length)
        self.sequence_length = sequence_length

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        pieces = self._of_samples(samples)
        announce(self._store, pieces)
        return [framed(self._store.read(*piece), self._special) for piece in pieces]

    def provenance(self, sample: int) -> Provenance:
        """Return the one piece; see ``StoredSequences``."""
        return Provenance(0, sample // self.num_sequences, self._of_samples(np.array([sample])))

    def _of_samples(self, samples: Int64s) -> list[Piece]:
        epochs, indices = np.divmod(samples, self.num_sequences)
        numbers = permute(indices, size=self.num_sequences, seed=self._seed, epoch=epochs)
        return list(map(Piece, *(values.tolist() for values in self._spans(numbers))))

    @abstractmethod
    def _spans(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return documents, starts and lengths of the sequences ``numbers``, in store order."""


class DocumentSequences(_OnePiece):
    """Every document by itself, cut every ``sequence_length - 2`` tokens; its last sequence has the rest.

    Args:
        store: any token store; stored end-of-text tokens are left out.
        special: the tokenizer's special tokens.
        sequence_length: the most tokens per sequence.
        seed: seed of the order.

    Raises:
        UserError: the sequences have no room for text.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        super().__init__(store, special, sequence_length=sequence_length, seed=seed)
        self._lengths = np.maximum(store.document_lengths - (store.end_of_text == "stored"), 0)
        self._ends = np.cumsum(-(-self._lengths // self._room))
        self.num_sequences = int(self._ends[-1])
        _refuse_empty(store, self.num_sequences)
        self.fingerprint = _fingerprint(store, special, f"documents {sequence_length} {seed}")

    def _spans(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        documents = np.searchsorted(self._ends, numbers, side="right")
        before = self._ends[documents] + -self._lengths[documents] // self._room
        starts = (numbers - before) * self._room
        return documents, starts, np.minimum(self._lengths[documents] - starts, self._room)


class LineSequences(_OnePiece):
    """Every sentence by itself, truncated to ``sequence_length - 2`` tokens.

    Args:
        store: a store of sentences; stored end-of-text tokens are left out.
        special: the tokenizer's special tokens.
        sequence_length: the most tokens per sequence.
        seed: seed of the order.

    Raises:
        UserError: the store has no sentences, or the sequences have no room for text.
    """

    def __init__(self, store: TokenStore, special: MaskingTokens, *, sequence_length: int, seed: int) -> None:
        super().__init__(store, special, sequence_length=sequence_length, seed=seed)
        _require_sentences(store, 'take objective.sequences "documents"')
        self._lines = sentences_of(store)
        self.num_sequences = len(self._lines.offsets)
        self.fingerprint = _fingerprint(store, special, f"lines {sequence_length} {seed}")

    def _spans(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        lines = self._lines
        owners = np.searchsorted(lines.first, numbers, side="right") - 1
        begins = lines.tokens_before(numbers)
        counts = np.minimum(lines.tokens_before(numbers + 1) - begins, self._room)
        starts = begins - lines.tokens_before(lines.first[owners])
        return lines.documents[owners], starts, counts


def sentences_of(store: TokenStore) -> Sentences:
    """Return the positions of a store's sentences, without empty ones and without stored end-of-text tokens.

    If the store has neither, this is its own index, mapped into memory; otherwise a table of 8 bytes per sentence.

    Raises:
        UserError: no sentence remains.
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
    """A store with separators between its documents."""

    def __init__(self, store: TokenStore, separator: int) -> None:
        has_end = store.end_of_text == "stored" or (store.end_of_text == "inserted" and store.num_sentences is None)
        self.end_of_text = store.end_of_text if has_end else "inserted"
        self.end_of_text_id = store.end_of_text_id if has_end else separator
        self.num_documents, self.document_lengths = store.num_documents, store.document_lengths
        self.fingerprint, self.read = store.fingerprint, store.read


def framed(text: Sequence[int] | Integers, special: MaskingTokens) -> TokenSequence:
    """Return a text as one segment between [CLS] and [SEP]."""
    tokens = np.empty(len(text) + 2, dtype=np.int64)
    tokens[0], tokens[1:-1], tokens[-1] = special.cls, text, special.sep
    return TokenSequence(tokens, np.zeros(len(tokens), dtype=np.int64))


def _room(sequence_length: int) -> int:
    if sequence_length < 3:
        raise UserError(f"a sequence of [CLS], text and [SEP] needs at least 3 tokens; got {sequence_length}")
    return sequence_length - 2


def _require_sentences(store: TokenStore, instead: str) -> None:
    if store.sequences != "sentences":
        raise UserError(
            f"{store.path}: the store has no sentences; build it again by "
            f"`hornbook corpus build --sequences sentences` or lines, or {instead}"
        )


def _refuse_empty(store: TokenStore, count: int) -> None:
    if not count:
        raise UserError(f"{store.path}: the store has no text; rebuild it from documents with text")


def _fingerprint(store: TokenStore, special: MaskingTokens, rules: str) -> str:
    return hashlib.sha256(f"{store.fingerprint}:{special.cls}:{special.sep}:{rules}".encode()).hexdigest()
