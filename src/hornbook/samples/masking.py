"""Masked tokens: which are hidden, and by what, as a function of (seed, sample, position).

    tokens       [CLS] the cat sat [SEP] on the mat [SEP]         hidden: 15 % of them, at places 2 and 7
    masked       [CLS] the [MASK] sat [SEP] on the dog [SEP]      80 % by [MASK], 10 % by any token, 10 % by themselves
    places       2 7        labels   cat mat

Two rules say which. ``static_mask``, for instances that are written to a file, is that of Google's BERT: a fixed number
a sequence, ``min(K, max(1, round(length * p)))``. ``dynamic_mask``, for masking on the fly, hides each token with
probability p, up to a cap M that leaves room for two standard deviations; what is above it is shown again at random,
and a short sequence may have nothing hidden. Either hides single tokens or whole words.

Sequences come flat, one after the other, and stay so. All are masked at once, some 20 ns a token on one core; sequences
above the cap, and those of static masks, are looked at one by one. The price of having no state: each token pays for a
hash, most of which nobody looks at.
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
    """Sequences with tokens hidden.

    Attributes:
        tokens: int64[N], all sequences one after the other.
        places: int64[P], where in ``tokens`` a token is to be predicted, rising.
        labels: int64[P], the ids to be predicted there.
    """

    tokens: Int64s
    places: Int64s
    labels: Int64s


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskRules:
    """What to hide.

    Attributes:
        special: the tokenizer's special tokens.
        probability: share of the tokens to hide.
        begins_word: bool[vocab_size] by ``word_beginnings``, to hide whole words; None for single tokens.
        seed: of all that is drawn.
    """

    special: MaskingTokens
    probability: float = 0.15
    begins_word: Bools | None = None
    seed: int

    @cached_property
    def is_special(self) -> Bools:
        """bool[vocab_size]: never hidden on the fly, never put in another's place."""
        return _flags(self.special.vocab_size, sorted(self.special.special_ids))

    @cached_property
    def is_frame(self) -> Bools:
        """bool[vocab_size]: never hidden: what is laid around the text."""
        return _flags(self.special.vocab_size, [self.special.cls, self.special.sep, self.special.pad])

    @cached_property
    def replacements(self) -> Int64s:
        """The ids that may stand in another's place: all but special ones, each as likely."""
        return np.flatnonzero(~self.is_special)


def word_beginnings(tokenizer: Tokenizer) -> Bools:
    """bool[vocab_size]: whether a token begins a word.

    By WordPiece, one without ``##`` does; by WordLevel, every one; by other models, one that begins with white space,
    so that punctuation belongs to the word that it follows. Special tokens are words.
    """
    prefix = tokenizer.continuing_prefix
    is_whole = not prefix and tokenizer.settings["model"].get("type") == "WordLevel"
    begins = np.zeros(tokenizer.vocab_size, dtype=bool)
    for token, number in tokenizer.vocab.items():
        begins[number] = is_whole or (not token.startswith(prefix) if prefix else token.startswith(_SPACES))
    begins[sorted(tokenizer.special_ids)] = True
    return begins


def dynamic_mask(tokens: Int64s, lengths: Int64s, samples: Int64s, rules: MaskRules, *, most: int) -> Masked:
    """Hide each token that is not special with the rules' probability, ``most`` of a sequence at the outside.

    A word is hidden with that probability where words are hidden whole; where they do not all fit, it is those that
    were drawn last that are shown again, the first that does not fit and all after it.

    Args:
        tokens: int64[N], sequences with their [CLS] and [SEP], one after the other.
        lengths: int64[S], tokens of each.
        samples: int64[S], number of each since the run began.
        rules: what to hide.
        most: the cap, see `hornbook.config.models.MaskingConfig.most_masked`.
    """
    hashes = _hashes(lengths, samples, rules)
    is_free = ~rules.is_special[tokens]
    words = _words(tokens, lengths, rules)
    draws = hashes if words is None else hashes[words.first][words.number]
    limit = np.uint64(min(round(rules.probability * 2**32) << 32, 2**64 - 1))  # this share of all hashes is below it
    is_hidden = is_free & (draws < limit)
    ends = np.cumsum(lengths)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(is_hidden)))
    for number in np.flatnonzero(before[ends] - before[ends - lengths] > most):
        start, end = int(ends[number] - lengths[number]), int(ends[number])
        places = start + np.flatnonzero(is_hidden[start:end])
        is_hidden[places] = False
        is_hidden[_first_drawn(places, draws, words, most)] = True
    return _corrupted(tokens, np.flatnonzero(is_hidden), hashes, rules)


def static_mask(
    tokens: Int64s, lengths: Int64s, samples: Int64s, rules: MaskRules, *, most: int, room: int | None = None
) -> Masked:
    """Hide ``min(most, max(1, round(length * probability)))`` tokens of each sequence, [CLS] and [SEP] apart.

    Whole words are hidden in the order in which they are drawn, those apart that do not fit any more. So there may be
    fewer, but never none, and where ``room`` asks for more, single tokens make up for it.

    Args:
        tokens: int64[N], sequences with their [CLS] and [SEP], one after the other.
        lengths: int64[S], tokens of each.
        samples: int64[S], number of each, the same for no two.
        rules: what to hide.
        most: K, of a sequence.
        room: tokens that fit when the hidden ones are moved to K slots in front: a longer sequence has so many hidden
            that the others fit behind, ``length - room + most`` at least. None where they stay in place.
    """
    hashes = _hashes(lengths, samples, rules)
    is_free = ~rules.is_frame[tokens]
    words = _words(tokens, lengths, rules)
    draws = hashes if words is None else hashes[words.first][words.number]
    chosen = [np.zeros(0, np.int64)]
    for start, length in zip((np.cumsum(lengths) - lengths).tolist(), lengths.tolist(), strict=True):
        places = start + np.flatnonzero(is_free[start : start + length])
        least = 0 if room is None else length - room + most
        count = min(max(min(most, max(1, round(length * rules.probability))), least), len(places))
        order = places[np.argsort(draws[places], kind="stable")]
        chosen.append(order[:count] if words is None else _whole_words(order, words.number, count, least))
    return _corrupted(tokens, np.sort(np.concatenate(chosen)), hashes, rules)


class _Words(NamedTuple):
    """The words of flat sequences: the number of each token's, and the place of each word's first token."""

    number: Int64s
    first: Int64s


def _words(tokens: Int64s, lengths: Int64s, rules: MaskRules) -> _Words | None:
    """What is truncated may begin in mid-word, and what follows a special token is a word of its own."""
    if rules.begins_word is None:
        return None
    begins = rules.begins_word[tokens]
    begins[1:] |= rules.is_special[tokens[:-1]]
    begins[np.cumsum(lengths) - lengths] = True
    return _Words(np.cumsum(begins) - 1, np.flatnonzero(begins))


def _first_drawn(places: Int64s, draws: Hashes, words: _Words | None, most: int) -> Int64s:
    """Of these places, the ``most`` with the smallest draws; if words are whole, as many words as fit."""
    order = places[np.argsort(draws[places], kind="stable")]
    if words is None or most >= len(order):
        return order[:most]
    numbers = words.number[order]
    is_whole: Bools = numbers[:most] != numbers[most]
    return order[:most][is_whole]


def _whole_words(order: Int64s, word_of: Int64s, count: int, least: int) -> Int64s:
    """Places of words, in the order given, as they fit into ``count``; then single ones until there are ``least``."""
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


def _corrupted(tokens: Int64s, places: Int64s, hashes: Hashes, rules: MaskRules) -> Masked:
    """Put [MASK], another token or the same one in these places, by the low bits of their hashes."""
    labels = tokens[places]
    own = hashes[places]
    bits = own & _LOW_BITS
    others = rules.replacements[(mix64(own, 1) % np.uint64(len(rules.replacements))).astype(np.int64)]
    masked = tokens.copy()
    masked[places] = np.where(
        bits < _SHARE_MASKED, rules.special.mask, np.where(bits < _SHARE_NOT_KEPT, others, labels)
    )
    return Masked(masked, places, labels)


def _hashes(lengths: Int64s, samples: Int64s, rules: MaskRules) -> Hashes:
    """uint64[N]: of (seed, sample, position); the high bits say what is hidden, the low ones by what."""
    positions = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return mix64(np.repeat(mix64(rules.seed, Purpose.MASKING, samples), lengths), positions)


def _flags(size: int, ids: list[int]) -> Bools:
    flags = np.zeros(size, dtype=bool)
    flags[ids] = True
    return flags
