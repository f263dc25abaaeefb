"""Documents of made-up words, for filters; and which of them a filter keeps."""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from hornbook.text.documents import Document
from hornbook.text.quality.filters import Filter


def document(text: str) -> Document:
    return Document(text, "a.txt", 0, len(text.encode()))


def kept(given: Filter, texts: Iterable[str]) -> list[str]:
    return [text for text in texts if given.keeps(document(text))]


def some_words(count: int, seed: int) -> list[str]:
    """Words out of so many that no two texts have a sequence in common by chance."""
    draws = random.Random(seed)
    return [f"w{draws.randrange(10**6)}" for _ in range(count)]


def decisions_in_parts(new: Callable[[], Filter], texts: Sequence[str], cuts: Iterable[int]) -> list[bool]:
    """Decide as a build does that is stopped at every cut: a new filter remembers what all former ones learned."""
    memories, decisions, edges = [], [], [0, *sorted(cuts), len(texts)]
    for start, stop in pairwise(edges):
        fresh = new()
        for memory in memories:
            fresh.remember(memory)
        decisions += [fresh.keeps(document(text)) for text in texts[start:stop]]
        memories.append(fresh.new_memory())
    return decisions
