"""The held-out documents of several corpora as one store, so that a mixture has one validation loss.

    wiki/validation    [5 6 0] [7 0]          end-of-text 0 stored
    books/validation   [8 9]                  end-of-text inserted by readers
    joined             [5 6 0] [7 0] [8 9 0]  three documents, end-of-text stored

Nothing is copied: a document is read from its own store. Where only some have end-of-text tokens, the others' documents
get them, too, so that a text is scored alike wherever it comes from. Corpora count by the size of their held-out part,
whatever weights the training gives them.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from hornbook.arrays import Int64s
from hornbook.corpora.store import TokenStore
from hornbook.text.tokenizer import Tokenizer


class JoinedStores:
    """Stores with manifests and of one tokenizer, laid end to end; its names mean what they mean in `TokenStore`."""

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
        """The tokenizer of all of them."""
        return self._stores[0].tokenizer()

    def document(self, number: int) -> Int64s:
        """The tokens of a document (0 .. num_documents - 1), its end-of-text token included."""
        return self.read(number, 0, int(self.document_lengths[number]))

    def read(self, document: int, start: int, count: int, /) -> Int64s:
        """Tokens ``start .. start + count - 1`` of a document."""
        place = int(self._firsts.searchsorted(document, side="right")) - 1
        inserted = self._inserted[place] and start + count == self.document_lengths[document]
        tokens = np.full(count, self.end_of_text_id or 0, dtype=np.int64)
        if own := count - inserted:
            tokens[:own] = self._stores[place].read(document - int(self._firsts[place]), start, own)
        return tokens


def join(stores: Sequence[TokenStore]) -> TokenStore | JoinedStores | None:
    """One store of several with manifests; a single one as it is, None of none."""
    return JoinedStores(stores) if len(stores) > 1 else next(iter(stores), None)


def by_name(stores: Sequence[TokenStore]) -> dict[str, TokenStore]:
    """Validation stores by the names of their corpora, or by whole paths where two corpora have one name."""
    corpora = [store.path.parent for store in stores]
    are_unique = len({corpus.name for corpus in corpora}) == len(set(corpora))
    return {corpus.name if are_unique else str(corpus): store for corpus, store in zip(corpora, stores, strict=True)}
