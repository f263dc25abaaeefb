"""What a filter is: a name to count under, a decision, and what it has to remember for the next one.

    keeps("one") -> True    keeps("two") -> True    new_memory() -> [[hash of one], [hash of two]]
    ... killed, started again: remember([[hash of one], [hash of two]]) ...
    keeps("one") -> False

A build keeps the memory with each part that it finishes, so a resumed one decides as if it had not stopped.
"""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hornbook.text.documents import Document

_NOTHING: Final = np.empty((0, 1), dtype=np.uint64)


class Filter(Protocol):
    """A decision on documents, one after the other in the order of the corpus.

    Attributes:
        name: what was dropped, for the report: ``"12 exact duplicates"``; `hornbook.wording` has a plural's singular.
    """

    name: str

    def keeps(self, document: Document) -> bool:
        """Tell whether a document stays; it counts as seen from now on."""
        ...

    def new_memory(self) -> NDArray[np.uint64]:
        """Return what was learned since the last call, uint64 [rows, width]; no rows if there is nothing."""
        ...

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Take back what ``new_memory`` gave, in the same order, before the first document.

        Raises:
            DataError: the filter cannot go on from there.
        """
        ...


class StatelessFilter:
    """A filter whose decision depends on nothing but the document."""

    def new_memory(self) -> NDArray[np.uint64]:
        """Return no rows."""
        return _NOTHING

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Do nothing: there is nothing to remember."""
