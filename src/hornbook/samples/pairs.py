"""Draw the next-sentence pairs of BERT from documents of sentences, without a generator's state.

    sentences of a document   0  1  2  3  4  5  6      target T = sequence_length - 3 tokens, sometimes fewer
    chunks                   [0  1  2  3][4  5  6]     a chunk ends at T tokens or at the end of its document
    label 0                   A  A| B  B               split at a random sentence, B is the rest
    label 1                   A  A| from elsewhere     and the next chunk begins at 2
    truncated                 the longer of A and B loses tokens at its front or end, at random, until they fit

These are the rules of Google's ``create_pretraining_data.py``, with three differences. The target is drawn for each
chunk, not for each document: a tenth of the chunks are short, rather than most of them, and passes differ little in
size. The other document is never the same one. And a chunk is identified by its first sentence: all its draws are
hashes of (seed, epoch, first sentence), so any chunk of any epoch can be computed alone, and an epoch is a list of
first sentences, 8 bytes per chunk. The price: finding them takes a pass over all documents in parallel, 0.25 us per
chunk for many documents, 60 us per chunk of the longest for few; and a sentence longer than the sequence loses the rest
of its text, as in the original.
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
    """The positions of the sentences of documents. No sentence and no document is empty.

    Attributes:
        documents: int64[D], number of each document in its store.
        first: int64[D + 1], number of each document's first sentence; the last entry is the number of sentences N.
        offsets: int64[N], start of each sentence, counted over all documents.
        end: end of the last sentence.
        unit: units of ``offsets`` and ``end`` per token, so that they may count bytes.
    """

    documents: Int64s
    first: Int64s
    offsets: Int64s
    end: int
    unit: int = 1

    def tokens_before(self, sentences: Int64s) -> Int64s:
        """Return the number of tokens, over all documents, before these sentences (0 .. N)."""
        inside = np.minimum(sentences, len(self.offsets) - 1)
        return np.where(sentences < len(self.offsets), self.offsets[inside], self.end) // self.unit

    def reach(self, sentences: Int64s, num_tokens: Int64s) -> Int64s:
        """Return the first sentence at least ``num_tokens`` tokens after these, from the next one to N."""
        wanted = (self.tokens_before(sentences) + num_tokens) * self.unit
        return np.maximum(np.searchsorted(self.offsets, wanted), sentences + 1)


@dataclass(frozen=True, kw_only=True)
class PairRules:
    """The rules of pairs.

    Attributes:
        sequence_length: the most tokens of a pair with its three special tokens, at least 5.
        short_sequence_probability: share of chunks with a uniform target of 2 to sequence_length - 3.
        seed: seed of all draws.
    """

    sequence_length: int
    short_sequence_probability: float = 0.1
    seed: int

    @property
    def room(self) -> int:
        """The most tokens of A and B together."""
        return self.sequence_length - SPECIAL_TOKENS


class Chunks(NamedTuple):
    """Chunks [C] of sentences, each int64 except ``is_random``.

    A is ``start`` .. ``split - 1``. B is the rest up to ``stop - 1`` or, if ``is_random``, from another document, and
    then the next chunk begins at ``split`` instead of ``stop``.
    """

    start: Int64s
    split: Int64s
    stop: Int64s
    target: Int64s
    is_random: Bools

    @property
    def following(self) -> Int64s:
        """The first sentence of the next chunk, if the document continues."""
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
    """Return the first sentence of every chunk of an epoch, ascending: int64[chunks].

    Raises:
        UserError: there are fewer than two documents, or the sequence has no room for a pair.
    """
    if rules.room < 2:
        raise UserError(f"a pair needs a sequence of at least 5 tokens; got {rules.sequence_length}")
    if len(sentences.documents) < 2:
        raise UserError(
            "next-sentence pairs need at least two documents, since half of the pairs join two; the store has "
            f"{len(sentences.documents)} with text: add documents, or train without pairs by `objective.name='mlm'`"
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
    """Return the chunks that begin at these sentences, in documents that end before ``document_end``."""
    keys = _keys(start, rules, epoch)
    is_short = _unit(keys, _Draw.IS_SHORT) < rules.short_sequence_probability
    target = np.where(is_short, 2 + _below(keys, _Draw.SHORT_TARGET, rules.room - 1), rules.room)
    stop = np.minimum(sentences.reach(start, target), document_end)
    count = stop - start
    split = start + 1 + _below(keys, _Draw.SPLIT, np.maximum(count - 1, 1))
    is_random = (count == 1) | (_unit(keys, _Draw.IS_RANDOM) < 0.5)
    return Chunks(start, split, stop, target, is_random)


def pairs_at(start: Int64s, sentences: Sentences, rules: PairRules, epoch: int) -> Pairs:
    """Return the pairs of the chunks that begin at these sentences, truncated to ``rules.room``.

    Args:
        start: int64[C], from ``first_sentences`` with the same sentences, rules and epoch.
        sentences: sentences of all documents.
        rules: the rules of pairs.
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
    """Return the lengths after the longer of A and B, or else B, loses one token at a time until both fit."""
    excess = np.maximum(a_length + b_length - room, 0)
    from_longer = np.minimum(excess, np.abs(a_length - b_length))
    in_turns = excess - from_longer
    from_a = np.where(a_length > b_length, from_longer, 0) + in_turns // 2
    return a_length - from_a, b_length - (excess - from_a)


def _keys(start: Int64s, rules: PairRules, epoch: int) -> Hashes:
    return mix64(rules.seed, Purpose.PAIRS, epoch, start)


def _unit(keys: Hashes, draw: _Draw) -> NDArray[np.float64]:
    """Draw uniformly from [0, 1)."""
    return (mix64(keys, draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _below(keys: Hashes, draw: _Draw, end: int | Int64s) -> Int64s:
    """Draw uniformly from 0 .. end - 1."""
    return (mix64(keys, draw) % np.asarray(end).astype(np.uint64)).astype(np.int64)


def _heads(coins: Int64s, keys: Hashes) -> Int64s:
    """Draw the number of heads among ``coins`` fair coins."""
    heads, word = np.zeros(len(coins), dtype=np.int64), 0
    while (active := np.flatnonzero(coins > 64 * word)).size:
        bits = np.unpackbits(mix64(keys[active], word).view(np.uint8)).reshape(-1, 64)
        heads[active] += np.count_nonzero(bits & (np.arange(64) < coins[active, None] - 64 * word), axis=1)
        word += 1
    return heads
