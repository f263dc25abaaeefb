"""Long texts in stretches, cut only where a tokenizer's pieces end anyway, so that the tokens are those of the whole.

    "one two three four", 7 characters or more, a blank begins a piece   ->   "one two", " three four"

Stretches are encoded in parallel: more even for the cores, a third faster even for one, and memory stays bounded. The
price: a text that has no place to cut stays whole, which is one core's work and takes up to 250 times its size of
memory; so who reads documents refuses one that has too much of it (``find_endless``).
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

CUT_CHARACTERS: Final = 16_384
MAX_STRETCH_BYTES: Final = 2 << 20
"""Of a document, in UTF-8, without a place to cut: if each byte is a token, that is half a gibibyte in the library."""

_BYTES_PER_CHARACTER: Final = 4


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


def utf8_bound(stretch: str) -> int:
    """The most bytes that a stretch may have in UTF-8, at no cost."""
    return len(stretch) if stretch.isascii() else _BYTES_PER_CHARACTER * len(stretch)


def find_endless(text: str, stretches: Callable[[str], Iterator[str]]) -> str | None:
    """Say what is wrong with a text that has more than ``MAX_STRETCH_BYTES`` without a place to cut; None for others.

    Args:
        text: the text.
        stretches: how a tokenizer cuts it.
    """
    if utf8_bound(text) <= MAX_STRETCH_BYTES:
        return None
    long = (stretch for stretch in stretches(text) if utf8_bound(stretch) > MAX_STRETCH_BYTES)
    size = max((len(stretch.encode(errors="surrogatepass")) for stretch in long), default=0)
    if size <= MAX_STRETCH_BYTES:
        return None
    return (
        f"has {size:,} bytes without a blank, a line end or another place to cut it for the tokenizer; "
        f"expected at most {MAX_STRETCH_BYTES:,} bytes: break it into lines, or leave the document out "
        "(--on-error skip)"
    )
