r"""Undo the tokenization of WikiText by the rules of Megatron-LM, which lm-evaluation-harness shares.

    "the M @-@ 82 's end , near ( Fremont ) \n"    ->    "the M-82's end, near (Fremont)\n"

A model of plain text has never seen these blanks and would be charged for them. The rules are applied in this order,
each to the whole text of 1.2 million characters, so a lone quotation mark pairs with the next one, however far away.
Published results depend on these rules, so they are kept exactly, including mistakes.
"""

import re
from typing import Final

_MARKS: Final = (
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
_PAIRS: Final = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))
_REST: Final = (
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" \N{DEGREE SIGN} ", "\N{DEGREE SIGN}"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


def detokenize_wikitext(text: str) -> str:
    """Return ``text`` without WikiText's blanks around punctuation."""
    for old, new in _MARKS:
        text = text.replace(old, new)
    for opening, closing in _PAIRS:
        text = _trim_inside(text, opening, closing)
    for old, new in _REST:
        text = text.replace(old, new)
    return text


def _trim_inside(text: str, opening: str, closing: str) -> str:
    """Remove the blanks just inside each pair of brackets or quotation marks, without nesting.

    Text after the last closing mark has no pair and is left out: a search from each opening mark would be quadratic.
    """
    head, last, tail = text.rpartition(closing)
    pattern = rf"{re.escape(opening)}([^{re.escape(closing)}]*){re.escape(closing)}"
    return re.sub(pattern, lambda match: f"{opening}{match[1].strip()}{closing}", head + last) + tail
