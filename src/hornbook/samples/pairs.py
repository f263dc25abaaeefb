"""Next-sentence pairs out of documents of sentences, as BERT was trained on, without a generator's state.

    sentences of a document   0  1  2  3  4  5  6      target T = sequence_length - 3 tokens, now and then fewer
    chunks                   [0  1  2  3][4  5  6]     a chunk ends where it has T tokens, or with its document
    label 0                   A  A| B  B               split at a random sentence, B is the rest
    label 1                   A  A| of another one     and 2 is where the next chunk begins
    truncated                 the longer of A and B loses tokens at both ends, by coins, until they fit

These are the rules of Google's ``create_pretraining_data.py``, with three differences. The target is drawn for each
chunk, not for each document: so a tenth of the chunks are short, not most of them, and passes are of about one size.
The other document is another one for sure. And a chunk is known by its first sentence: all that is drawn for it is a
hash of (seed, epoch, first sentence), so any chunk of any epoch can be made alone, and an epoch is a list of first
sentences, 8 bytes a chunk. The price: which they are is found by going through the documents, all of them abreast,
0.25 us a chunk where they are many, 60 us for each of the longest's where they are few; and a sentence longer than the
sequence loses the rest of its text, as in the original.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Bools, Hashes, Int64s
from hornbook.errors import UserError
from hornbook.samples.hashing import Purpose, mix64

SPECIAL_TOKENS: Final = 3
"""[CLS] and two [SEP]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sentences:
    """Where the sentences of documents lie. None is empty, no document is without a sentence.

    Attributes:
        documents: int64[D], number of each document in its store.
        first: int64[D + 1], number of each document's first sentence; the last entry is the number of sentences N.
        offsets: int64[N], what lies before each sentence, over all documents.
        end: what lies before the end of the last.
        unit: how many of these make a token, so that offsets may count bytes.
    """

    documents: Int64s
    first: Int64s
    offsets: Int64s
    end: int
    unit: int = 1

    def tokens_before(self, sentences: Int64s) -> Int64s:
        """Tokens of all documents before these sentences (0 .. N, which is the end)."""
        inside = np.minimum(sentences, len(self.offsets) - 1)
        return np.where(sentences < len(self.offsets), self.offsets[inside], self.end) // self.unit

    def reach(self, sentences: Int64s, num_tokens: Int64s) -> Int64s:
        """The first sentence that begins so many tokens or more behind these; at least the next one, N at most."""
        wanted = (self.tokens_before(sentences) + num_tokens) * self.unit
        return np.maximum(np.searchsorted(self.offsets, wanted), sentences + 1)


@dataclass(frozen=True, kw_only=True)
class PairRules:
    """How to make pairs.

    Attributes:
        sequence_length: tokens of a pair with its three special tokens, 5 or more.
        short_sequence_probability: share of the chunks with a target from 2 to sequence_length - 3, uniformly.
        seed: of all that is drawn.
    """

    sequence_length: int
    short_sequence_probability: float = 0.1
    seed: int

    @property
    def room(self) -> int:
        """Tokens of A and B together, at most."""
        return self.sequence_length - SPECIAL_TOKENS


class Chunks(NamedTuple):
    """Chunks [C] of sentences, each int64 but ``is_random``.

    A is ``start`` .. ``split - 1``. B is the rest up to ``stop - 1`` or, if ``is_random``, from another document; then
    the next chunk begins at ``split``, else at ``stop``.
    """

    start: Int64s
    split: Int64s
    stop: Int64s
    target: Int64s
    is_random: Bools

    @property
    def following(self) -> Int64s:
        """Where the next chunk begins, if the document goes on."""
        return np.where(self.is_random, self.split, self.stop)


class Pairs(NamedTuple):
    """Pairs [C], each int64: tokens ``start`` .. ``start + length - 1`` of two documents of the store.

    ``label`` is 1 where B is from another document.
    """

    a_document: Int64s
    a_start: Int64s
    a_length: Int64s
    b_document: Int64s
    b_start: Int64s
    b_length: Int64s
    label: Int64s


class _Draw(IntEnum):
    IS_SHORT = 0
    SHORT_TARGET = 1
    SPLIT = 2
    IS_RANDOM = 3
    OTHER_DOCUMENT = 4
    OTHER_SENTENCE = 5
    A_FRONT = 6
    B_FRONT = 7


def first_sentences(sentences: Sentences, rules: PairRules, epoch: int) -> Int64s:
    """The first sentence of every chunk of an epoch, rising: int64[chunks].

    Raises:
        UserError: there are fewer than two documents, or the sequence has no room for a pair.
    """
    if rules.room < 2:
        raise UserError(f"a pair takes a sequence of 5 tokens or more; got {rules.sequence_length}")
    if len(sentences.documents) < 2:
        raise UserError(
            "next-sentence pairs take two documents or more, since every other pair joins two; the store has "
            f"{len(sentences.documents)} with text: give more documents, or train without pairs"
        )
    start, end = sentences.first[:-1], sentences.first[1:]
    found = []
    while start.size:
        found.append(start)
        following = chunks_at(start, end, sentences, rules, epoch).following
        goes_on = following < end
        start, end = following[goes_on], end[goes_on]
    return np.sort(np.concatenate(found))


def chunks_at(start: Int64s, document_end: Int64s, sentences: Sentences, rules: PairRules, epoch: int) -> Chunks:
    """The chunks that begin at these sentences, in documents that end before the sentences ``document_end``."""
    keys = _keys(start, rules, epoch)
    is_short = _unit(keys, _Draw.IS_SHORT) < rules.short_sequence_probability
    target = np.where(is_short, 2 + _below(keys, _Draw.SHORT_TARGET, rules.room - 1), rules.room)
    stop = np.minimum(sentences.reach(start, target), document_end)
    count = stop - start
    split = start + 1 + _below(keys, _Draw.SPLIT, np.maximum(count - 1, 1))
    is_random = (count == 1) | (_unit(keys, _Draw.IS_RANDOM) < 0.5)
    return Chunks(start, split, stop, target, is_random)


def pairs_at(start: Int64s, sentences: Sentences, rules: PairRules, epoch: int) -> Pairs:
    """The pairs of the chunks that begin at these sentences, truncated to their room.

    Args:
        start: int64[C], some of what ``first_sentences`` found for the same sentences, rules and epoch.
        sentences: of all documents.
        rules: how to make pairs.
        epoch: pass through the documents, from 0.
    """
    keys = _keys(start, rules, epoch)
    owner = np.searchsorted(sentences.first, start, side="right") - 1
    chunks = chunks_at(start, sentences.first[owner + 1], sentences, rules, epoch)
    a_start = sentences.tokens_before(start)
    a_length = sentences.tokens_before(chunks.split) - a_start
    other = _below(keys, _Draw.OTHER_DOCUMENT, len(sentences.documents) - 1)
    b_owner = np.where(chunks.is_random, other + (other >= owner), owner)
    first, end = sentences.first[b_owner], sentences.first[b_owner + 1]
    b_first = np.where(chunks.is_random, first + _below(keys, _Draw.OTHER_SENTENCE, end - first), chunks.split)
    filled = np.minimum(sentences.reach(b_first, np.maximum(chunks.target - a_length, 1)), end)
    b_start = sentences.tokens_before(b_first)
    b_length = sentences.tokens_before(np.where(chunks.is_random, filled, chunks.stop)) - b_start
    a_kept, b_kept = truncated_lengths(a_length, b_length, rules.room)
    a_start += _heads(a_length - a_kept, mix64(keys, _Draw.A_FRONT)) - sentences.tokens_before(sentences.first[owner])
    b_start += _heads(b_length - b_kept, mix64(keys, _Draw.B_FRONT)) - sentences.tokens_before(first)
    label = chunks.is_random.astype(np.int64)
    numbers = sentences.documents
    return Pairs(numbers[owner], a_start, a_kept, numbers[b_owner], b_start, b_kept, label)


def truncated_lengths(a_length: Int64s, b_length: Int64s, room: int) -> tuple[Int64s, Int64s]:
    """What is left of A and B when the longer, or else B, has lost a token at a time until both fit ``room``."""
    excess = np.maximum(a_length + b_length - room, 0)
    from_longer = np.minimum(excess, np.abs(a_length - b_length))
    in_turns = excess - from_longer
    from_a = np.where(a_length > b_length, from_longer, 0) + in_turns // 2
    return a_length - from_a, b_length - (excess - from_a)


def _keys(start: Int64s, rules: PairRules, epoch: int) -> Hashes:
    return mix64(rules.seed, Purpose.PAIRS, epoch, start)


def _unit(keys: Hashes, draw: _Draw) -> NDArray[np.float64]:
    """Uniform in [0, 1)."""
    return (mix64(keys, draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _below(keys: Hashes, draw: _Draw, end: int | Int64s) -> Int64s:
    """Uniform in 0 .. end - 1."""
    return (mix64(keys, draw) % np.asarray(end).astype(np.uint64)).astype(np.int64)


def _heads(coins: Int64s, keys: Hashes) -> Int64s:
    """How many of so many fair coins show heads."""
    heads, word = np.zeros(len(coins), dtype=np.int64), 0
    while (active := np.flatnonzero(coins > 64 * word)).size:
        bits = np.unpackbits(mix64(keys[active], word).view(np.uint8)).reshape(-1, 64)
        heads[active] += np.count_nonzero(bits & (np.arange(64) < coins[active, None] - 64 * word), axis=1)
        word += 1
    return heads
