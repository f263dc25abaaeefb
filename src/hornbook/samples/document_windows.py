"""Windows of the beginnings of documents: the first T + 1 tokens of each.

::

    documents   [5 6 7 8 9] [3 4] [1 2 7 7]      sequence_length T is 3
    windows      5 6 7 8           1 2 7 7       [3 4] is too short

Every token's context is the whole text before it. The price: the rest of each document and all short documents are
unused. No window contains end-of-text tokens.
"""

import numpy as np

from hornbook.arrays import Int64s
from hornbook.errors import UserError
from hornbook.samples.hashing import permute
from hornbook.samples.windows import NOT_SCORED, EvaluationWindow, Piece, TokenSource, Window


class DocumentWindows:
    """Training samples: sample n is the beginning of a document, a pure function of (seed, n).

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
    tokens = np.stack([source.read(document, 0, sequence_length + 1) for document in documents.tolist()])
    return Window(tokens=tokens.astype(np.int64), documents=np.zeros(tokens.shape, dtype=np.int64))
