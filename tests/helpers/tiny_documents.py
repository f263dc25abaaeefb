"""Documents of made-up words, for filters; which of them a filter keeps; and the parts of a build with them."""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from tiny_text import tiny_tokenizer

from hornbook.corpora.building.batches import read_batches
from hornbook.corpora.building.duplicates import find_droppers
from hornbook.corpora.building.parts import Part, Parts
from hornbook.corpora.building.token_pipeline import TokenPlan, tokenize_batches
from hornbook.text.documents import Document
from hornbook.text.quality.filters import Filter
from hornbook.text.quality.policy import Filters
from hornbook.text.reading import Position, Tally


def document(text: str, number: int = 0) -> Document:
    return Document(text, "a.txt", number, len(text.encode()))


def kept(given: Filter, texts: Iterable[str]) -> list[str]:
    return [text for text in texts if given.keeps(document(text))]


def some_words(count: int, seed: int) -> list[str]:
    """Words out of so many that no two texts have a sequence in common by chance."""
    draws = random.Random(seed)
    return [f"w{draws.randrange(10**6)}" for _ in range(count)]


def comparing(*, exact: bool = False, near: float | None = None, after: Sequence[Filter] = ()) -> Filters:
    return Filters(before=[], exact_duplicates=exact, after=list(after), near_duplicates=near)


def parts_of(
    folder: Path, texts: Sequence[str], filters: Filters, cuts: Iterable[int] = (), validation: float = 0.0
) -> list[Part]:
    """Build texts in slices that are cut before the texts of these numbers; a document's offset is its number."""
    plan = TokenPlan(
        encode=tiny_tokenizer().encode_batch,
        dtype=np.dtype("u2"),
        source_numbers={"a.txt": 0},
        validation=validation,
        end_of_text_id=299,
    )
    found = []
    for number, (start, stop) in enumerate(pairwise([0, *sorted(cuts), len(texts)])):
        tally = Tally()

        def read(tally: Tally = tally, start: int = start, stop: int = stop) -> Iterable[Document]:
            for offset in range(start, stop):
                tally.documents += 1
                tally.position = Position(0, offset + 1)
                yield document(texts[offset], offset)
            tally.position = Position(1)

        parts = Parts(folder / f"{number:06d}")
        (folder / f"{number:06d}").mkdir(parents=True)
        batches = tokenize_batches(read_batches(read(), tally, filters, {"a.txt": 0}), plan)
        parts.write(batches, ("train", "validation") if validation else ("train",), np.uint16, lambda counts: None)
        found += parts.finished
    return found


def droppers_of(folder: Path, texts: Sequence[str], filters: Filters, cuts: Iterable[int] = ()) -> list[str | None]:
    """Which filter drops each of the texts, all of which are compared."""
    parts = parts_of(folder / "slices", texts, filters, cuts)
    codes = find_droppers(parts, filters, folder).tolist()
    assert len(codes) == len(texts)
    return [None if code == 0 else filters.names[code - 1] for code in codes]
