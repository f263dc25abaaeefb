"""What is in a store, in numbers and a few samples: the facts behind ``hornbook corpus inspect``.

    document lengths 3, 5, 6, 200   ->   [(2, 4, 1), (4, 8, 2), (128, 256, 1)]: from, below, how many

The price of bins that double in width: a table of twenty lines shows tweets and books at once.
"""

from dataclasses import dataclass

import numpy as np

from hornbook.corpus.store import TokenStore

_SAMPLE_TOKENS = 48


@dataclass(frozen=True, kw_only=True)
class Bin:
    """How many documents have ``start`` tokens or more and less than ``end``."""

    start: int
    end: int
    documents: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The beginning of a document: its number, its text (its ids where no tokenizer is known), and where it is from.

    ``unit`` is what the source's offset counts, ``"byte"`` or ``"row"``.
    """

    document: int
    text: str
    source: tuple[str, int] | None
    unit: str


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens a document: the shortest, the mean, the middle one, the longest, and all in bins that double."""

    shortest: int
    mean: float
    median: float
    longest: int
    bins: list[Bin]


def describe_lengths(store: TokenStore) -> Lengths:
    """The lengths of the documents in tokens, stored end-of-text tokens included."""
    lengths = store.document_lengths
    exponents = np.frexp(np.maximum(lengths, 1))[1] - 1  # 2**e <= length < 2**(e + 1); frexp is exact below 2**53
    counts = np.bincount(exponents)
    bins = [Bin(start=1 << e, end=2 << e, documents=int(counts[e])) for e in range(int(exponents.min()), len(counts))]
    return Lengths(
        shortest=int(lengths.min()),
        mean=float(lengths.mean()),
        median=float(np.median(lengths)),
        longest=int(lengths.max()),
        bins=bins,
    )


def samples(store: TokenStore, count: int) -> list[Sample]:
    """The beginnings of ``count`` documents, evenly spread over the store."""
    numbers = np.unique(np.linspace(0, store.num_documents - 1, count).astype(np.int64)).tolist()
    tokenizer = store.tokenizer()
    found = []
    for number in numbers:
        tokens = store.read(number, 0, min(_SAMPLE_TOKENS, int(store.document_lengths[number])))
        text = tokenizer.decode(tokens) if tokenizer else " ".join(map(str, tokens.tolist()))
        unit = store.offset_unit(number)
        found.append(Sample(document=number, text=text, source=store.source(number), unit=unit))
    return found


def tokens_per_byte(store: TokenStore) -> float | None:
    """Tokens of text (without stored end-of-text tokens) per byte of it; None where the bytes are not known."""
    if not store.num_bytes:
        return None
    return (store.num_tokens - store.num_documents * (store.end_of_text == "stored")) / store.num_bytes
