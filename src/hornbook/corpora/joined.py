"""A view of several validation stores as one, so that a mixture of corpora has one validation loss.

    wiki/validation    [5 6 0] [7 0]          end-of-text 0 stored
    books/validation   [8 9]                  end-of-text inserted by readers
    joined             [5 6 0] [7 0] [8 9 0]  three documents, end-of-text stored

Nothing is copied: each document is read from its store. If only some stores have end-of-text tokens, they are added to
the documents of the others, so that a text is scored the same in every store. Each corpus counts by the size of its
held-out part, whatever its weight in training.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from hornbook.arrays import Int64s
from hornbook.corpora.store import TokenStore
from hornbook.text.tokenizer import Tokenizer


class JoinedStores:
    """A concatenation of stores with manifests and the same tokenizer; for attributes and methods see `TokenStore`."""

    def __init__(self, stores: Sequence[TokenStore]) -> None:
        self._stores = stores
        ids = [store.end_of_text_id for store in stores if store.end_of_text != "absent"]
        self._inserted = [int(bool(ids) and store.end_of_text != "stored") for store in stores]
        self._firsts = np.cumsum([0] + [store.num_documents for store in stores])
        lengths = [store.document_lengths + more for store, more in zip(stores, self._inserted, strict=True)]
        self.document_lengths: Int64s = np.concatenate(lengths)
        self.num_documents = len(self.document_lengths)
        self.num_bytes = sum(store.num_bytes or 0 for store in stores)
        self.end_of_text = "stored" if ids else "absent"
        self.end_of_text_id = ids[0] if ids else None
        self.fingerprint = hashlib.sha256(":".join(store.fingerprint for store in stores).encode()).hexdigest()

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of all stores."""
        return self._stores[0].tokenizer()

    def document(self, number: int) -> Int64s:
        """Return the tokens of a document (0 to num_documents - 1), its end-of-text token included."""
        return self.read(number, 0, int(self.document_lengths[number]))

    def read(self, document: int, start: int, count: int, /) -> Int64s:
        """Return the tokens ``start`` to ``start + count - 1`` of a document."""
        number = int(self._firsts.searchsorted(document, side="right")) - 1
        inserted = self._inserted[number] and start + count == self.document_lengths[document]
        tokens = np.full(count, self.end_of_text_id or 0, dtype=np.int64)
        if stored := count - inserted:
            tokens[:stored] = self._stores[number].read(document - int(self._firsts[number]), start, stored)
        return tokens


def join(stores: Sequence[TokenStore]) -> TokenStore | JoinedStores | None:
    """Return a view of several stores as one; a single store is returned unchanged, and None for no stores."""
    return JoinedStores(stores) if len(stores) > 1 else next(iter(stores), None)


def by_name(stores: Sequence[TokenStore]) -> dict[str, TokenStore]:
    """Return the validation stores by the names of their corpora, or by path if two corpora have the same name."""
    corpora = [store.path.parent for store in stores]
    are_unique = len({corpus.name for corpus in corpora}) == len(set(corpora))
    return {corpus.name if are_unique else str(corpus): store for corpus, store in zip(corpora, stores, strict=True)}
