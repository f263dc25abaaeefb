"""Generated tokens that behave like a token store: for ``data.synthetic = true`` and for benchmarks.

    SyntheticTokens(vocab_size=8, seed=0, num_documents=2, document_length=3)   ->   [5 1 3 7] [2 6]

Every token is a hash of (seed, document, place), so a terabyte of them takes no memory and no file, and any part can be
read at once, the same each time. Ids are uniform over 1..vocab_size-1, as the generated data of the PyTorch GPT-2 that
hornbook replaces; id 0 is kept for the end-of-text token that examples insert. The price: nothing can be learned from
them, the loss stays at log(vocab_size - 1) beside the end-of-text tokens.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from hornbook.data.hashing import Purpose, mix64
from hornbook.errors import UserError


class SyntheticTokens:
    """A store of documents of uniform random tokens; a `hornbook.data.examples.TokenSource` without files.

    Args:
        vocab_size: ids run from 1 to vocab_size - 1; 0 is end-of-text.
        seed: any integer; another seed, other tokens and lengths.
        num_documents: how many documents.
        document_length: mean length in tokens; lengths are uniform over 1..2 * document_length - 1.

    Raises:
        UserError: a vocabulary of fewer than two tokens.
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

    def read(self, document: int, start: int, count: int) -> NDArray[np.int64]:
        """int64[count]: tokens ``start .. start + count - 1`` of a document."""
        assert start >= 0 and start + count <= self.document_lengths[document], "a read past the document's end"
        draws = mix64(self._seed, Purpose.SYNTHETIC_TOKENS, document, np.arange(start, start + count))
        return 1 + _below(draws, self.vocab_size - 1)


def _below(draws: NDArray[np.uint64], bound: int) -> NDArray[np.int64]:
    """Draws of 64 bits to uniform integers in 0..bound-1, by the high half of a product (bias under bound / 2**32)."""
    return (((draws >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)
