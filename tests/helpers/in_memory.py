"""A token source that holds its documents in a list, and the plainest possible reading of it to compare with."""

import numpy as np

from hornbook.samples.windows import Window, Windows


class InMemoryTokens:
    fingerprint = "in-memory"

    def __init__(self, documents, end_of_text="inserted", end_of_text_id=0):
        self.documents = [np.array(document, dtype=np.uint16) for document in documents]
        self.document_lengths = np.array([len(document) for document in documents], dtype=np.int64)
        self.num_documents = len(documents)
        self.end_of_text = end_of_text
        self.end_of_text_id = end_of_text_id

    def read(self, document, start, count):
        assert start >= 0 and count >= 1 and start + count <= self.document_lengths[document]
        return self.documents[document][start : start + count]

    def stream(self):
        """(token, document, offset or None where it was inserted) of each place of the stream."""
        places = []
        for number, document in enumerate(self.documents):
            places += [(int(token), number, offset) for offset, token in enumerate(document)]
            if self.end_of_text == "inserted":
                places.append((self.end_of_text_id, number, None))
        return places


def window_of(windows: Windows, sample: int) -> Window:
    """The window of one sample: int64[T+1] tokens and document numbers."""
    window = windows.batch(np.array([sample]))
    return Window(tokens=window.tokens[0], documents=window.documents[0])


def numbered(num_documents=7, mean=30, **options):
    """Documents of growing length whose tokens are all different, so that a token tells its place."""
    lengths = [1 + (mean * (index + 1) * 2) // (num_documents + 1) for index in range(num_documents)]
    starts = np.cumsum([1, *lengths])
    return InMemoryTokens(
        [range(start, start + length) for start, length in zip(starts, lengths, strict=False)], **options
    )
