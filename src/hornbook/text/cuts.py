"""Long texts in stretches, cut only where a tokenizer's pieces end anyway, so that the tokens are those of the whole.

    "one two three four", 7 characters or more, a blank begins a piece   ->   "one two", " three four"

Stretches are encoded in parallel: more even for the cores, a third faster even for one, and memory stays bounded. The
price: a text that has no place to cut stays whole, and one of them is one core's work.
"""

import re
from collections.abc import Iterator
from typing import Final

CUT_CHARACTERS: Final = 16_384


def cuts(text: str, place: re.Pattern[str], size: int = CUT_CHARACTERS) -> Iterator[str]:
    """Cut a text into stretches of ``size`` characters or a little more.

    Args:
        text: the text; an empty one is one stretch.
        place: matches what a stretch may end with, whatever comes before and after it.
        size: at least 1.
    """
    start = 0
    while len(text) - start > size and (match := place.search(text, start + size - 1)):
        yield text[start : match.end()]
        start = match.end()
    if start < len(text) or not start:
        yield text[start:]
