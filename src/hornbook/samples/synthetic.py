"""Random tokens in place of a token store, for ``data.synthetic = true`` and benchmarks.

    SyntheticTokens(vocab_size=8, seed=0, num_documents=2, document_length=3)   ->   [5 1 3 7] [2 6]

Every token is a hash of (seed, document, position), so a terabyte of them takes no memory and no file, and any part can
be read at any time, with the same result. Ids are uniform over 1..vocab_size-1, as in the generated data of the PyTorch
GPT-2 that hornbook replaces; id 0 is reserved for inserted end-of-text tokens. The price: nothing can be learned from
them; except for end-of-text tokens, the loss stays at log(vocab_size - 1).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Hashes, Int64s
from hornbook.errors import UserError
from hornbook.samples.hashing import Purpose, mix64
from hornbook.samples.sequences import TokenSequence
from hornbook.text.special_tokens import MaskingTokens


class SyntheticTokens:
    """A store of documents of uniform random tokens; a `hornbook.samples.windows.TokenSource` without files.

    Args:
        vocab_size: ids run from 1 to vocab_size - 1; 0 is end-of-text.
        seed: any integer; determines tokens and lengths.
        num_documents: how many documents.
        document_length: mean length in tokens; lengths are uniform over 1..2 * document_length - 1.

    Raises:
        UserError: the vocabulary has fewer than two tokens.
    """

    end_of_text = "inserted"
    end_of_text_id = 0

    def __init__(self, *, vocab_size: int, seed: int, num_documents: int = 4096, document_length: int = 1024) -> None:
        if vocab_size < 2:
            raise UserError(f"synthetic data needs a vocabulary of at least 2 tokens, not {vocab_size}: set vocab_size")
        self._seed = seed
        self.vocab_size = vocab_size
        self.num_documents = num_documents
        draws = mix64(seed, Purpose.SYNTHETIC_LENGTHS, np.arange(num_documents))
        self.document_lengths = 1 + _below(draws, 2 * document_length - 1)
        self.num_tokens = int(self.document_lengths.sum())
        arguments = f"synthetic {vocab_size} {seed} {num_documents} {document_length}"
        self.fingerprint = hashlib.sha256(arguments.encode()).hexdigest()

    def read(self, document: int, start: int, count: int) -> Int64s:
        """Return tokens ``start .. start + count - 1`` of a document, int64[count]."""
        assert start >= 0 and start + count <= self.document_lengths[document], "a read past the document's end"
        draws = mix64(self._seed, Purpose.SYNTHETIC_TOKENS, document, np.arange(start, start + count))
        return 1 + _below(draws, self.vocab_size - 1)


class SyntheticSequences:
    """Pairs of random texts with the lengths of Wikipedia's; a ``SequenceSource`` without files.

    Documents of log-normal length (median 110 tokens, standard deviation of the logarithm 1.6) are cut to length, and a
    tenth of the pieces is shortened. So rows of 128, 384 and 512 tokens are filled to 81, 58 and 50 %; for Wikipedia,
    Krell et al. ("Efficient sequence packing", 2021) report 83, 57 and 50 %.

    Args:
        vocab_size: ids run from 5 to vocab_size - 1; those below are special.
        sequence_length: the most tokens per sequence.
        seed: any integer.

    Raises:
        UserError: the vocabulary has only special tokens, or the sequence has no room for a pair.
    """

    special_ids = range(5)

    def __init__(self, *, vocab_size: int, sequence_length: int, seed: int) -> None:
        if vocab_size <= len(self.special_ids) or sequence_length < 5:
            raise UserError(
                f"synthetic sequences need a vocabulary of at least 6 and at least 5 tokens, not {vocab_size} and "
                f"{sequence_length}: set model.vocab_size and data.sequence_length"
            )
        self._seed, self._vocab_size = seed, vocab_size
        self.sequence_length = sequence_length
        self._lengths = _piece_lengths(sequence_length - 3, seed)
        self.num_sequences = len(self._lengths)
        ids = frozenset(self.special_ids)
        self.special = MaskingTokens(cls=2, sep=3, mask=4, pad=0, vocab_size=vocab_size, special_ids=ids)
        """The special tokens: 0 is padding, 1 unknown, 2 [CLS], 3 [SEP], 4 [MASK]."""
        arguments = f"synthetic sequences {vocab_size} {sequence_length} {seed}"
        self.fingerprint = hashlib.sha256(arguments.encode()).hexdigest()

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        num_special, found = len(self.special_ids), []
        for sample in samples.tolist():
            length = int(self._lengths[sample % self.num_sequences])
            draws = mix64(self._seed, Purpose.SYNTHETIC_TOKENS, sample, np.arange(length + 1))
            middle = 1 + length // 2
            tokens = np.zeros(length + 3, dtype=np.int64)
            text = num_special + _below(draws[:length], self._vocab_size - num_special)
            tokens[1:middle], tokens[middle + 1 : -1] = text[: middle - 1], text[middle - 1 :]
            tokens[[0, middle, -1]] = self.special.cls, self.special.sep, self.special.sep
            segments = (np.arange(length + 3) > middle).astype(np.int64)
            found.append(TokenSequence(tokens, segments, int(draws[length] & np.uint64(1))))
        return found


def _piece_lengths(room: int, seed: int) -> Int64s:
    """Return the shuffled lengths, each 2 .. room, of the pieces of 4,096 documents."""
    first, second = (_uniform(seed, number, np.arange(4096)) for number in (0, 1))
    normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)  # Box and Muller 1958
    documents = np.maximum(np.exp(4.7 + 1.6 * normal), 2).astype(np.int64)
    whole, rest = np.divmod(documents, room)
    lengths = np.concatenate((np.full(int(whole.sum()), room), np.maximum(rest[rest > 0], 2)))
    draws = _uniform(seed, 2, np.arange(len(lengths)))
    short = 2 + (draws * 10 * (room - 1)).astype(np.int64)
    lengths = np.where(draws < 0.1, np.minimum(lengths, short), lengths)
    shuffled: Int64s = lengths[np.argsort(mix64(seed, Purpose.SYNTHETIC_LENGTHS, 3, np.arange(len(lengths))))]
    return shuffled


def _uniform(seed: int, number: int, items: Int64s) -> NDArray[np.float64]:
    """Draw uniformly from [0, 1)."""
    draws = mix64(seed, Purpose.SYNTHETIC_LENGTHS, number, items)
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _below(draws: Hashes, bound: int) -> Int64s:
    """Map 64-bit draws to uniform integers in 0..bound-1 by the high half of a product (bias < bound / 2**32)."""
    return (((draws >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)
