r"""Splitting of texts into sentences whose concatenation is the text.

    "Mr. Hill came.  He saw Dr. Wu.\n"     ->   "Mr. Hill came."   "  He saw Dr. Wu.\n"       sentence_splitter()
    "one line\nanother line\n"             ->   "one line"         "\nanother line\n"         split_lines

White space belongs to the sentence after it, so byte-level BPE, whose words begin with a space, gives the tokens of the
whole text; WordPiece drops white space.

Sentences are found by sentencex of the Wikimedia Foundation (rules and abbreviations for some 30 languages, MIT), the
extra ``sentences``. It gets one paragraph at a time, since it may search far ahead for the end of a quotation, with
blanks for other white space, since some of that crashes the process (1.0.32, U+2028). It does not split direct speech;
a piece that is one quotation is split here, one that also has "said he" is not.
"""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final, TypeAlias

from hornbook.errors import UserError
from hornbook.extras import require

Splitter: TypeAlias = Callable[[str], list[str]]

_TELLING: Final = "Mr. He came. Okla. Hill left."
"""A text that sentencex splits like English if and only if it has no rules for the language."""

_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[a-z]+)*")
_PARAGRAPH: Final = re.compile(r".+?(?:\n\s*\n|\Z)", re.DOTALL)
_MAX_PARAGRAPH: Final = 20_000
_CUT: Final = re.compile(rf".{{1,{_MAX_PARAGRAPH}}}(?=\s|\Z)|.{{1,{_MAX_PARAGRAPH}}}", re.DOTALL)
_ODD_SPACE: Final = re.compile(r"[^\S \n]")
_MARKS: Final = '"“”„«»'
_QUOTATION: Final = re.compile(rf"\s*[{_MARKS}](?P<inner>[^{_MARKS}]+)[{_MARKS}]\s*")


def sentence_splitter(language: str = "en", on_notice: Callable[[str], None] = lambda line: None) -> Splitter:
    """Return a function that splits a text into its sentences, whose concatenation is the text; a blank one has none.

    An empty line ends a sentence, a line end does not. A sentence has at most 20,000 characters.

    Args:
        language: Wikipedia's code, such as ``en``; an unknown one uses the rules of a related language, or of English.
        on_notice: called with a line if English's rules are used for another language.

    Raises:
        UserError: sentencex is not installed, or the language is not a code. The returned function raises it for a text
            with lone surrogates.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UserError(f"{language!r} is no language code; expected one such as en, de or pt")
    sentencex = require("sentencex", extra="sentences", purpose="finding sentences")

    def starts(code: str, text: str) -> list[int]:
        boundaries = sentencex.get_sentence_boundaries(code, text)
        return [boundary["start_index"] for boundary in boundaries]  # the last end_index may be before the text's end

    def pieces(text: str) -> list[str]:
        try:
            inner = starts(language, _ODD_SPACE.sub(" ", text))[1:]
        except UnicodeEncodeError:
            raise UserError(
                "a text has lone surrogates, so it is not valid Unicode; decode it again from its bytes"
            ) from None
        return [text[start:end] for start, end in pairwise((0, *inner, len(text)))]

    if language.partition("-")[0] != "en" and starts(language, _TELLING) == starts("en", _TELLING):
        on_notice(f"no rules for {language!r}; sentences are split by the rules for English")

    def split(text: str) -> list[str]:
        found: list[str] = []
        for whole in _PARAGRAPH.findall(text):
            for paragraph in (whole,) if len(whole) <= _MAX_PARAGRAPH else _CUT.findall(whole):
                for piece in pieces(paragraph):
                    if quotation := _QUOTATION.fullmatch(piece):  # its marks join the first and last sentence
                        start, end = quotation.span("inner")
                        inner = pieces(piece[start:end])
                        inner[0] = piece[:start] + inner[0]
                        inner[-1] += piece[end:]
                        found += inner
                    else:
                        found.append(piece)
        return _joined(found)

    return split


def split_lines(text: str) -> list[str]:
    r"""Split a text after its line ends (``\n``, ``\r\n``, ``\r``); blank lines are joined with adjacent lines."""
    return _joined(re.split(r"(?<=[\r\n])", text))


def _joined(pieces: Iterable[str]) -> list[str]:
    """Move white space to the start of the next piece and drop blank pieces; the last keeps what follows it."""
    sentences, gap = [], ""
    for piece in pieces:
        body = piece.rstrip()
        if body:
            sentences.append(gap + body)
            gap = ""
        gap += piece[len(body) :]
    if sentences:
        sentences[-1] += gap
    return sentences
