"""How well two simple models predict a text, from which `hornbook.plan.dial.Corpus` estimates a language model's loss.

::

    training text     --  --  --  32 pieces of 16,384 tokens, each compressed  ->  xz: near strings come again
                      |   |   |
                      their bigrams, counted  --+
    held-out text     ----------- predicted   --+----------------------------->  bigrams: which token is next
"""

import lzma
import math
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from hornbook.corpora.store import TokenStore
from hornbook.errors import UserError
from hornbook.plan.dial import TextBits
from hornbook.samples.sources import Sources

_PIECES, _PIECE = 32, 2**14  # tokens
_COMPRESSED_BYTES, _PREDICTED_TOKENS = 2**16, 2**19
_HELD_OUT = 0.05
"""Of a corpus without a validation split: the end."""

Ids = NDArray[numpy.int64]


def text_bits(sources: Sources) -> TextBits:
    """Return the bits per byte of xz and of a bigram model on pieces of the corpus.

    Raises:
        UserError: the corpus does not name its tokenizer.
    """
    tokenizer = sources.tokenizer
    if tokenizer is None:
        raise UserError(
            "the corpus does not name its tokenizer, which the recipe auto needs: build it with `hornbook corpus build`"
        )

    train = [store for store in sources.train if isinstance(store, TokenStore)]
    total = sum(store.num_tokens for store in train)
    num_predicted = min(
        _PREDICTED_TOKENS, sum(store.num_tokens for store in sources.held_out) or int(_HELD_OUT * total)
    )
    rest = total if sources.held_out else total - num_predicted
    length = min(_PIECE, rest)
    places = numpy.linspace(0, rest - length, max(1, min(_PIECES, rest // length))).astype(int).tolist()
    pieces = [_tokens(train, place, length) for place in places]
    predicted = _tokens(sources.held_out or train, 0 if sources.held_out else rest, num_predicted)
    texts = [tokenizer.decode(piece.tolist()).encode()[:_COMPRESSED_BYTES] for piece in pieces]
    bits = bigram_nats(numpy.concatenate(pieces), predicted, tokenizer.vocab_size) * len(predicted) / math.log(2)
    return TextBits(
        compressed=8 * float(numpy.mean([len(lzma.compress(text)) / max(1, len(text)) for text in texts])),
        bigram=bits / max(1, len(tokenizer.decode(predicted.tolist()).encode())),
    )


def bigram_nats(counted: Ids, predicted: Ids, vocabulary: int) -> float:
    """Return the mean cross-entropy in nats of ``predicted`` tokens but the first, from the bigrams of ``counted``.

    Bigrams are mixed with unigrams (Witten and Bell 1991), and these start at half a count.
    """
    unigrams = numpy.bincount(counted, minlength=vocabulary) + 0.5
    pairs, times = numpy.unique(counted[:-1] * vocabulary + counted[1:], return_counts=True)
    seen = numpy.bincount(pairs // vocabulary, times, minlength=vocabulary)
    followers = numpy.bincount(pairs // vocabulary, minlength=vocabulary)
    before, after = predicted[:-1], predicted[1:]
    places = numpy.searchsorted(pairs, before * vocabulary + after).clip(max=len(pairs) - 1)
    both = numpy.where(pairs[places] == before * vocabulary + after, times[places], 0)
    unigram = unigrams[after] / unigrams.sum()
    mixed = (both + followers[before] * unigram) / numpy.maximum(1, seen[before] + followers[before])
    return float(-numpy.log(numpy.where(seen[before] > 0, mixed, unigram)).mean())


def _tokens(stores: Sequence[TokenStore], place: int, length: int) -> Ids:
    """Return up to ``length`` tokens of stores in a row, int64, from a place among all of theirs."""
    parts = [numpy.zeros(0, numpy.int64)]
    for store in stores:
        parts.append(numpy.asarray(store.indexed.tokens[place : place + length], numpy.int64))
        place, length = max(0, place - store.num_tokens), length - len(parts[-1])
    return numpy.concatenate(parts)
