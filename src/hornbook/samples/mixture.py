"""Blend several stores into one sequence of samples by their weights, without a copy.

    weights 2 : 1        wiki    w0  w1 | w2  w3 | w4  w5 | ...     each sample at a random time in its cell:
                         books      b0  |    b1  | b2     | ...     2 cells for wiki per cell of books
    samples              w0 b0 w1  w2 w3 b1  b2 w4 w5 ...           read from left to right

A store with share p of the weights has cells of length 1 / p. The time of its sample j is in its j-th cell, at an
offset that is a hash of (seed, store, j); sample n of the mixture is the n-th of all samples by time. So by time t a
store has contributed t * p samples, plus or minus one, and by sample n it has contributed n * p, plus or minus 1 +
(stores - 2) * p. This is stratified sampling: no period, no table, and exact shares wherever all cells end together, as
after an epoch.

Sample n is among the few samples whose times are near n, since n samples take n units of time, plus or minus one per
store. They are located a page at a time, in integers, so that no rounding depends on the page or the machine. The
price: 0.5 us per sample. Each store goes through its own epochs, in its own order (`hornbook.samples.windows`).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hornbook.arrays import Int64s
from hornbook.samples.hashing import Purpose, mix64, repeat_first
from hornbook.samples.windows import DocumentWindows, Piece, TokenSource, Window, Windows

_PAGE_SIZE = 1024
_KEPT_PAGES = 8
_CELL_BITS = 32


class Blend:
    """The assignment of samples to sources and to their sample numbers there: a pure function of (seed, n).

    Args:
        shares: share of each source, integers from 1 in any proportion. After each multiple of ``sum(shares)`` samples,
            every source has contributed exactly its share.
        seed: any integer.
    """

    def __init__(self, shares: Sequence[int], seed: int) -> None:
        assert shares, "nothing to blend"
        assert min(shares) >= 1, "a source without a share"
        self._shares, self._total, self._seed = list(shares), sum(shares), seed
        self._page = lru_cache(maxsize=_KEPT_PAGES)(self._find_page)

    def locate(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Return the source of each of B samples and its number there: int64[B] each."""
        assert samples.min() >= 0, "samples are numbered from 0"
        pages, indices = np.divmod(samples, _PAGE_SIZE)
        found = np.empty((2, len(samples)), dtype=np.int64)
        for page in np.unique(pages).tolist():
            here = pages == page
            found[:, here] = self._page(page)[:, indices[here]]
        return found[0], found[1]

    def _find_page(self, page: int) -> Int64s:
        """Return the sources and numbers of a page of samples, int64[2, page size]."""
        first, margin = page * _PAGE_SIZE, len(self._shares)
        begins = [max(0, first - margin) * share // self._total for share in self._shares]
        ends = [(first + _PAGE_SIZE + margin) * share // self._total + 1 for share in self._shares]
        near = sorted(
            event
            for source, (begin, end) in enumerate(zip(begins, ends, strict=True))
            for event in self._times(source, begin, end)
        )
        skipped = first - sum(begins)
        chosen = near[skipped : skipped + _PAGE_SIZE]
        return np.array([(source, number) for _, source, number in chosen], dtype=np.int64).T

    def _times(self, source: int, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (time in 2**-32 of a sample, source, number) for a source's samples ``begin .. end - 1``."""
        draws = mix64(self._seed, Purpose.BLEND, source, np.arange(begin, end)) >> np.uint64(64 - _CELL_BITS)
        for number, draw in enumerate(draws.tolist(), begin):
            yield ((number << _CELL_BITS) + draw) * self._total // self._shares[source], source, number


class Provenance(NamedTuple):
    """The tokens that a sample of a mixture reads.

    Attributes:
        source: number of the store.
        epoch: the store's epoch, from 0.
        pieces: the tokens read from its documents, in order.
    """

    source: int
    epoch: int
    pieces: list[Piece]


class Mixture:
    """Training samples of one or several sources; with a single source, its windows.

    An epoch has ``num_items`` samples, as many as all sources have windows together. By default a source's share is its
    part of those, so each window occurs once per epoch.

    Args:
        sources: one or more.
        sequence_length: T, the inputs of a window.
        seed: any integer.
        weights: positive weight of each source, in any proportion; empty for the sources' sizes.
        max_samples: the most samples per epoch; every epoch then has the same ones (``repeat_first``); None for all.
        kind: class that cuts a source into windows.

    Attributes:
        sequence_length: T.
        num_items: samples per epoch.
        shares: each source's share of the samples; the sum is 1.

    Raises:
        UserError, DataError: see `Windows`.
    """

    def __init__(
        self,
        sources: Sequence[TokenSource],
        sequence_length: int,
        seed: int,
        weights: Sequence[float] = (),
        *,
        max_samples: int | None = None,
        kind: type[Windows] | type[DocumentWindows] = Windows,
    ) -> None:
        assert len(weights) in (0, len(sources)), f"{len(weights)} weights for {len(sources)} sources"
        self._windows = [
            kind(source, sequence_length, seed_of_source(number, seed)) for number, source in enumerate(sources)
        ]
        sizes = [windows.num_items for windows in self._windows]
        shares = whole_shares(weights) if weights else sizes
        self._blend = Blend(shares, seed)
        self.sequence_length = sequence_length
        self._num_all, self._seed = sum(sizes), seed
        self.num_items = min(self._num_all, max_samples or self._num_all)
        self.shares = [share / sum(shares) for share in shares]

    def batch(self, samples: Int64s) -> Window:
        """Return the windows of B samples: int64[B, T+1]."""
        sources, numbers = self._blend.locate(self._among_all(samples))
        shape = (len(samples), self.sequence_length + 1)
        tokens, documents = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        for source in np.unique(sources).tolist():
            here = sources == source
            window = self._windows[source].batch(numbers[here])
            tokens[here], documents[here] = window.tokens, window.documents
        return Window(tokens=tokens, documents=documents)

    def provenance(self, sample: int) -> Provenance:
        """Return the source and the tokens of its documents that a sample reads."""
        (source,), (number,) = (found.tolist() for found in self._blend.locate(self._among_all(np.array([sample]))))
        windows = self._windows[source]
        is_part = self.num_items < self._num_all
        epoch = sample // self.num_items if is_part else number // windows.num_items
        return Provenance(source, epoch, windows.provenance(number))

    def _among_all(self, samples: Int64s) -> Int64s:
        return repeat_first(samples, size=self.num_items, whole=self._num_all, seed=self._seed)


def joint_fingerprint(sources: Sequence[TokenSource], weights: Sequence[float]) -> str:
    """Return a hash of the sources in their order and of their weights."""
    parts = [source.fingerprint for source in sources] + [repr(float(weight)) for weight in weights]
    return hashlib.sha256(":".join(parts).encode()).hexdigest()


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Return the smallest integers in the proportion of weights, taking each weight as the decimal it is written as.

    ``[0.7, 0.3] -> [7, 3]``
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    common = math.lcm(*(fraction.denominator for fraction in exact))
    whole = [int(fraction * common) for fraction in exact]
    return [share // math.gcd(*whole) for share in whole]


def seed_of_source(number: int, seed: int) -> int:
    """Return the seed of a source: the first source has the run's seed, so that a single store keeps its samples."""
    return int(mix64(seed, Purpose.SOURCE_SEED, number)) if number else seed
