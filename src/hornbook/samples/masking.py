"""Mask tokens for masked language modeling, as a function of (seed, sample, position).

    tokens       [CLS] the cat sat [SEP] on the mat [SEP]         15 % of the tokens, here 2 and 7
    masked       [CLS] the [MASK] sat [SEP] on the dog [SEP]      80 % become [MASK], 10 % any token, 10 % stay
    indices      2 7        labels   cat mat

``static_mask``, for instances that are written to a file, follows Google's BERT: a fixed number per sequence,
``min(K, max(1, round(length * p)))``. ``dynamic_mask``, for masking during training, masks each token with probability
p, up to a cap M two standard deviations above the mean; tokens above the cap are unmasked at random, and a short
sequence may have none masked. Both mask single tokens or whole words.

Sequences are concatenated, in and out. All are masked at once, at about 20 ns per token on one core; sequences above
the cap and those of static masks are processed one by one. The price of being stateless: a hash for every token, most
of which are unused.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hornbook.arrays import Bools, Hashes, Int64s
from hornbook.samples.hashing import Purpose, mix64
from hornbook.text.special_tokens import MaskingTokens
from hornbook.text.tokenizer import Tokenizer

_SPACES = ("Ġ", "Ċ", "ĉ", "č", "▁")
_LOW_BITS = np.uint64(0xFFFFFFFF)
_SHARE_MASKED, _SHARE_NOT_KEPT = round(0.8 * 2**32), round(0.9 * 2**32)


class Masked(NamedTuple):
    """Concatenated sequences with masked tokens.

    Attributes:
        tokens: int64[N], all sequences concatenated.
        indices: int64[P], indices in ``tokens`` of the predicted tokens, ascending.
        labels: int64[P], the original tokens.
    """

    tokens: Int64s
    indices: Int64s
    labels: Int64s


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskRules:
    """The rules of masking.

    Attributes:
        special: the tokenizer's special tokens.
        probability: share of the tokens to mask.
        begins_word: bool[vocab_size] by ``word_beginnings``, to mask whole words; None for single tokens.
        seed: seed of all draws.
    """

    special: MaskingTokens
    probability: float = 0.15
    begins_word: Bools | None = None
    seed: int

    @cached_property
    def is_special(self) -> Bools:
        """bool[vocab_size], tokens that dynamic masking never masks and that never replace a token."""
        return _flags(self.special.vocab_size, sorted(self.special.special_ids))

    @cached_property
    def is_frame(self) -> Bools:
        """bool[vocab_size], [CLS], [SEP] and padding, which are never masked."""
        return _flags(self.special.vocab_size, [self.special.cls, self.special.sep, self.special.pad])

    @cached_property
    def replacements(self) -> Int64s:
        """The ids that may replace a token: all but special ones, with equal probability."""
        return np.flatnonzero(~self.is_special)


def word_beginnings(tokenizer: Tokenizer) -> Bools:
    """Return bool[vocab_size]: whether a token begins a word.

    For WordPiece, a token without ``##`` does; for WordLevel, every token; for other models, a token that begins with
    white space, so that punctuation belongs to the preceding word. Special tokens are words.
    """
    prefix = tokenizer.continuing_prefix
    is_whole = not prefix and tokenizer.settings["model"].get("type") == "WordLevel"
    begins = np.zeros(tokenizer.vocab_size, dtype=bool)
    for token, number in tokenizer.vocab.items():
        begins[number] = is_whole or (not token.startswith(prefix) if prefix else token.startswith(_SPACES))
    begins[sorted(tokenizer.special_ids)] = True
    return begins


def dynamic_mask(tokens: Int64s, lengths: Int64s, samples: Int64s, rules: MaskRules, *, most: int) -> Masked:
    """Mask each non-special token with the rules' probability, at most ``most`` per sequence.

    With whole words, each word is masked with that probability; if the words do not fit into ``most``, those drawn last
    are unmasked: the first that does not fit and all after it.

    Args:
        tokens: int64[N], concatenated sequences with their [CLS] and [SEP].
        lengths: int64[S], length of each sequence.
        samples: int64[S], number of each sequence since the run began.
        rules: what to mask.
        most: the cap, see `hornbook.config.objectives.MaskingConfig.most_masked`.
    """
    hashes = _hashes(lengths, samples, rules)
    is_free = ~rules.is_special[tokens]
    words = None if rules.begins_word is None else _words(tokens, lengths, rules.begins_word[tokens], rules)
    draws = hashes if words is None else hashes[words.first][words.number]
    limit = np.uint64(min(round(rules.probability * 2**32) << 32, 2**64 - 1))  # this share of hashes is below
    is_hidden = is_free & (draws < limit)
    ends = np.cumsum(lengths)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(is_hidden)))
    for number in np.flatnonzero(before[ends] - before[ends - lengths] > most):
        start, end = int(ends[number] - lengths[number]), int(ends[number])
        indices = start + np.flatnonzero(is_hidden[start:end])
        is_hidden[indices] = False
        order = indices[np.argsort(draws[indices], kind="stable")]
        if words is None:
            is_hidden[order[:most]] = True
        else:  # as many words as fit
            numbers = words.number[order]
            is_hidden[order[:most][numbers[:most] != numbers[most]]] = True
    return _corrupted(tokens, np.flatnonzero(is_hidden), hashes, rules)


def static_mask(
    tokens: Int64s, lengths: Int64s, samples: Int64s, rules: MaskRules, *, most: int, room: int | None = None
) -> Masked:
    """Mask ``min(most, max(1, round(length * probability)))`` tokens of each sequence, except [CLS] and [SEP].

    Whole words are masked in the order in which they are drawn, skipping those that no longer fit. So there may be
    fewer masked tokens, but at least one, and if ``room`` requires more, single tokens are added.

    Args:
        tokens: int64[N], concatenated sequences with their [CLS] and [SEP].
        lengths: int64[S], length of each sequence.
        samples: int64[S], a distinct number for each sequence.
        rules: what to mask.
        most: K, the most masked tokens per sequence.
        room: length that is available when the masked tokens are moved to K slots in front: at least
            ``length - room + most`` tokens of a longer sequence are masked, so that the others fit behind the slots.
            None if masked tokens stay in place.
    """
    hashes = _hashes(lengths, samples, rules)
    is_free = ~rules.is_frame[tokens]
    words = None if rules.begins_word is None else _words(tokens, lengths, rules.begins_word[tokens], rules)
    draws = hashes if words is None else hashes[words.first][words.number]
    chosen = [np.zeros(0, np.int64)]
    for start, length in zip((np.cumsum(lengths) - lengths).tolist(), lengths.tolist(), strict=True):
        indices = start + np.flatnonzero(is_free[start : start + length])
        least = 0 if room is None else length - room + most
        count = min(max(min(most, max(1, round(length * rules.probability))), least), len(indices))
        order = indices[np.argsort(draws[indices], kind="stable")]
        chosen.append(order[:count] if words is None else _whole_words(order, words.number, count, least))
    return _corrupted(tokens, np.sort(np.concatenate(chosen)), hashes, rules)


class _Words(NamedTuple):
    """The words of concatenated sequences: each token's word number, and the index of each word's first token."""

    number: Int64s
    first: Int64s


def _words(tokens: Int64s, lengths: Int64s, begins: Bools, rules: MaskRules) -> _Words:
    """Split into words; a sequence may begin inside a word, and a special token ends the word before it.

    ``begins`` says which tokens begin a word; it is changed.
    """
    begins[1:] |= rules.is_special[tokens[:-1]]
    begins[np.cumsum(lengths) - lengths] = True
    return _Words(np.cumsum(begins) - 1, np.flatnonzero(begins))


def _whole_words(order: Int64s, word_of: Int64s, count: int, least: int) -> Int64s:
    """Return the indices of the first words that fit into ``count``, then of single tokens up to ``least``."""
    numbers = word_of[order]
    taken: list[Int64s] = []
    left = count
    for word in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
        if len(word) <= left:
            taken.append(word)
            left -= len(word)
        if not left:
            break
    chosen = np.concatenate([order[:0], *taken])
    others = np.setdiff1d(order, chosen, assume_unique=True)
    missing = min(max(least, 1), count) - len(chosen)
    return np.concatenate((chosen, others[: max(missing, 0)]))


def _corrupted(tokens: Int64s, indices: Int64s, hashes: Hashes, rules: MaskRules) -> Masked:
    """Replace these tokens by [MASK], by another token or not at all, decided by the low bits of their hashes."""
    labels = tokens[indices]
    own = hashes[indices]
    bits = own & _LOW_BITS
    others = rules.replacements[(mix64(own, 1) % np.uint64(len(rules.replacements))).astype(np.int64)]
    masked = tokens.copy()
    masked[indices] = np.where(
        bits < _SHARE_MASKED, rules.special.mask, np.where(bits < _SHARE_NOT_KEPT, others, labels)
    )
    return Masked(masked, indices, labels)


def _hashes(lengths: Int64s, samples: Int64s, rules: MaskRules) -> Hashes:
    """Return uint64[N], hashes of (seed, sample, position); high bits choose tokens, low bits their replacements."""
    positions = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return mix64(np.repeat(mix64(rules.seed, Purpose.MASKING, samples), lengths), positions)


def _flags(size: int, ids: list[int]) -> Bools:
    flags = np.zeros(size, dtype=bool)
    flags[ids] = True
    return flags
