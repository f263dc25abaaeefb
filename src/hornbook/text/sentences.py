r"""A text as its sentences, which together are the text again.

    "Mr. Hill came.  He saw Dr. Wu.\n"     ->   "Mr. Hill came."   "  He saw Dr. Wu.\n"       sentence_splitter()
    "one line\nanother line\n"             ->   "one line"         "\nanother line\n"         split_lines

White space opens the sentence that it stands before, so byte-level BPE, whose words begin with their space, gives the
tokens of the whole text; WordPiece drops it.

Sentences are found by sentencex, of the Wikimedia Foundation (rules and abbreviations for some 30 languages, MIT), the
extra ``sentences``. It is given one paragraph at a time, since it may look far ahead for the end of a quotation, with
plain spaces for other white space, since some of that ends the process (1.0.32, U+2028). It leaves direct speech whole;
a quotation alone is split here, one with "said he" in it is not.
"""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final, TypeAlias

from hornbook.errors import UserError
from hornbook.extras import require

Splitter: TypeAlias = Callable[[str], list[str]]

_TELLING: Final = "Mr. He came. Okla. Hill left."
"""What each language that sentencex has rules for splits otherwise than English, and one without does not."""

_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[a-z]+)*")
_PARAGRAPH: Final = re.compile(r".+?(?:\n\s*\n|\Z)", re.DOTALL)
_MAX_PARAGRAPH: Final = 20_000
_CUT: Final = re.compile(rf".{{1,{_MAX_PARAGRAPH}}}(?=\s|\Z)|.{{1,{_MAX_PARAGRAPH}}}", re.DOTALL)
_ODD_SPACE: Final = re.compile(r"[^\S \n]")
_MARKS: Final = '"“”„«»'
_QUOTATION: Final = re.compile(rf"\s*[{_MARKS}](?P<inner>[^{_MARKS}]+)[{_MARKS}]\s*")


def sentence_splitter(language: str = "en", on_notice: Callable[[str], None] = lambda line: None) -> Splitter:
    """Return what splits a text of one language into its sentences, which together are the text; a blank one has none.

    An empty line ends a sentence, a line's end does not; nor is a sentence longer than 20,000 characters.

    Args:
        language: a code of Wikipedia, as ``en``; an unknown one has the rules of a related language, or of English.
        on_notice: gets a line where English's rules are used.

    Raises:
        UserError: sentencex is not installed, or the language is no code; by the splitter, a text has lone surrogates.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UserError(f"{language!r} is no language; expected a code such as en, de or pt")
    sentencex = require("sentencex", extra="sentences", purpose="finding sentences")

    def starts(code: str, text: str) -> list[int]:
        boundaries = sentencex.get_sentence_boundaries(code, text)
        return [boundary["start_index"] for boundary in boundaries]  # its last end may fall short of the text's

    def pieces(text: str) -> list[str]:
        try:
            inner = starts(language, _ODD_SPACE.sub(" ", text))[1:]
        except UnicodeEncodeError:
            raise UserError("a text has lone surrogates, so it is not Unicode; decode it anew from its bytes") from None
        return [text[start:end] for start, end in pairwise((0, *inner, len(text)))]

    if language.partition("-")[0] != "en" and starts(language, _TELLING) == starts("en", _TELLING):
        on_notice(f"no rules for {language!r} are known: sentences are found by those of English")

    def split(text: str) -> list[str]:
        found: list[str] = []
        for whole in _PARAGRAPH.findall(text):
            for paragraph in (whole,) if len(whole) <= _MAX_PARAGRAPH else _CUT.findall(whole):
                for piece in pieces(paragraph):
                    if quotation := _QUOTATION.fullmatch(piece):  # one quotation: its marks go to the first and last
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
    r"""Split a text behind its line ends (``\n``, ``\r\n``, ``\r``); blank lines belong to their neighbors."""
    return _joined(re.split(r"(?<=[\r\n])", text))


def _joined(pieces: Iterable[str]) -> list[str]:
    """The pieces, without blank ones, each with the white space that stands before it; the last keeps what follows."""
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
